"""Recovery, `(guided - base) / (reference - base)`, with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy.special import stdtrit

from lm_eval_takeover.results.statistics import CONFIDENCE, Interval, Values, covariance_of_means

NOT_ABOVE = "the reference is not above the base beyond noise"


@dataclass(frozen=True)
class Trio:
    """Values per problem of one task, in one order of problems."""

    guided: Values
    base: Values
    reference: Values
    observations: float  # that a value is the mean of (`statistics.count_observations`)


def measure_recovery(tasks: Sequence[Trio], confidence: float = CONFIDENCE) -> Interval | None:
    """Recovery of the unweighted means over tasks, paired by problem; None if the reference is within noise of the base."""
    pairs = [np.stack([task.guided - task.base, task.reference - task.base]) for task in tasks]
    return measure_ratio(pairs, [task.observations for task in tasks], confidence)


def measure_ratio(tasks: Sequence[Values], counts: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """The ratio of two means over tasks, each [2, problems] of differences; None unless the second is above 0 beyond noise.

    The interval is Fieller's: all R for which the mean of `first - R second` does not differ from 0. It is bounded exactly where
    the mean of `second` differs from 0, so both answers come from one test. `counts` are the observations behind a value.
    """
    means, covariance, parts = np.zeros(2), np.zeros((2, 2)), []
    for pairs, count in zip(tasks, counts, strict=True):
        means += pairs.mean(axis=1) / len(tasks)
        part = covariance_of_means(pairs, count) / len(tasks) ** 2
        covariance += part
        parts.append((part[1, 1], pairs.shape[1] - 1))
    if any(free < 1 for _, free in parts):
        return None
    freedom = covariance[1, 1] ** 2 / sum(variance**2 / free for variance, free in parts)
    t2 = float(stdtrit(freedom, (1 + confidence) / 2)) ** 2
    a = means[1] ** 2 - t2 * covariance[1, 1]
    if means[1] <= 0 or a <= 0:
        return None
    b = means[0] * means[1] - t2 * covariance[0, 1]
    c = means[0] ** 2 - t2 * covariance[0, 0]
    reach = sqrt(max(b * b - a * c, 0.0))
    return Interval(float(means[0] / means[1]), float((b - reach) / a), float((b + reach) / a))

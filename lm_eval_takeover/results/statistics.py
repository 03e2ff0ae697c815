"""Intervals, differences, tests and Recovery over problems, whose samples are nested in them.

A problem has one value in [0, 1]: the mean over its samples (Acc), an unbiased estimate from them (Pass@8), or 0 or 1 (Maj@8).
Problems are independent; samples of one problem are not, so problems are counted and never samples. Where two runs have the
same problems, their values are paired. Coverage: `benchmarks/interval_coverage.py`, docs/statistics.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import copysign, inf, sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

Values = NDArray[np.float64]  # one per problem

CONFIDENCE = 0.95
_AGREEMENT = 0.2  # problems' worth of evidence that the samples of a problem all agree, if nothing else is known


@dataclass(frozen=True)
class Interval:
    """A mean with its two-sided interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A mean of differences with its standard error and the degrees of freedom of Student's t."""

    value: float
    error: float
    freedom: float

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        reach = self.reach(confidence)
        return Interval(self.value, self.value - reach, self.value + reach)

    def reach(self, confidence: float = CONFIDENCE) -> float:
        """The distance from the value to either bound."""
        return self.error * float(stdtrit(self.freedom, (1 + confidence) / 2))

    def p_value(self) -> float:
        """Two-sided, of the hypothesis that the difference is 0."""
        return min(1.0, 2 * float(stdtr(self.freedom, -abs(self._distance))))

    def p_below(self) -> float:
        """One-sided: how probable a difference this low or lower is if the true one is 0."""
        return float(stdtr(self.freedom, self._distance))

    @property
    def _distance(self) -> float:
        if self.error == 0:
            return copysign(inf, self.value) if self.value else 0.0
        return self.value / self.error

    @classmethod
    def average(cls, parts: Sequence[Self]) -> Self:
        """Unweighted mean over tasks, whose problems are independent; degrees of freedom by Welch and Satterthwaite."""
        variances = [part.error**2 for part in parts]
        total = sum(variances)
        spread = sum(variance**2 / part.freedom for variance, part in zip(variances, parts, strict=True))
        freedom = total**2 / spread if spread else min(part.freedom for part in parts)
        return cls(sum(part.value for part in parts) / len(parts), sqrt(total) / len(parts), freedom)


def within_shares(interval: Interval) -> Interval:
    """Clip the interval of a difference of two shares to -1 and 1."""
    return Interval(interval.value, max(interval.low, -1.0), min(interval.high, 1.0))


def mean_interval(values: Values, confidence: float = CONFIDENCE) -> Interval:
    """The mean over problems with Wilson's score interval at the effective number of problems.

    `n_eff = N / deff`, where `deff` is the variance between problems over that of problems whose samples all agree,
    `(sum (x - m)^2 + c) / (N m (1 - m) + c)`. It is 1 where all samples of a problem agree, down to 1/8 where 8 are independent,
    and 1 at 0 of 240 or 240 of 240, where the data cannot tell. Student's t replaces the normal quantile, since `deff` is
    estimated (Dean and Pagano, J. Surv. Stat. Methodol. 3, 2015, compare such intervals).
    """
    mean = values.mean()
    low, high = bounds_of(len(values), mean, ((values - mean) ** 2).sum(), confidence)
    return Interval(float(mean), float(low), float(high))


def bounds_of(count: int, mean: Values, squares: Values, confidence: float = CONFIDENCE) -> tuple[Values, Values]:
    """`mean_interval` from the number of problems, their means [rows] and their sums of squared deviations [rows]."""
    if count < 2:
        return np.zeros_like(mean), np.ones_like(mean)
    effect = (squares + _AGREEMENT) / (count * mean * (1 - mean) + _AGREEMENT)
    effective = count / effect
    z2 = float(stdtrit(count - 1, (1 + confidence) / 2)) ** 2
    centre = (mean + z2 / (2 * effective)) / (1 + z2 / effective)
    reach = np.sqrt(z2 * (mean * (1 - mean) / effective + z2 / (4 * effective**2))) / (1 + z2 / effective)
    # At 0 and 1 the bound equals the mean; rounding errors are cut off.
    return np.clip(np.minimum(centre - reach, mean), 0, 1), np.clip(np.maximum(centre + reach, mean), 0, 1)


def average_interval(parts: Sequence[Interval]) -> Interval:
    """The unweighted mean over tasks; distances to the bounds add in squares (Zou and Donner, Stat. Med. 27, 2008)."""
    value = sum(part.value for part in parts) / len(parts)
    below = sqrt(sum((part.value - part.low) ** 2 for part in parts)) / len(parts)
    above = sqrt(sum((part.high - part.value) ** 2 for part in parts)) / len(parts)
    return Interval(value, max(value - below, 0.0), min(value + above, 1.0))


def count_observations(metric: str, samples: int) -> int:
    """How many independent observations a problem's value is the mean of: its samples for a share, 1 for a 0 or 1."""
    name, _, k = metric.partition("@")
    return max(1, samples // int(k)) if name == "pass" else 1 if name == "maj" else samples


def paired_difference(differences: Values, observations: float) -> Difference:
    """The mean of one difference per problem, each of means over so many `observations`, `inf` where no number applies.

    Where hardly any problem differs, the variance counts two more: one that became better and one that became worse, by one
    observation (squares `f = 2 / observations`). So an interval never has no width: that no problem differs among 30 does not
    show that none will. As the sum of squares S grows beyond that, so does what is added shrink: `S + f / (1 + S / f)`.
    """
    mean = differences.mean()
    error = errors_of(len(differences), ((differences - mean) ** 2).sum(), observations)
    return Difference(float(mean), float(error), max(len(differences) - 1, 1))


def average_differences(tasks: Sequence[Values], observations: Sequence[float]) -> Difference:
    """`paired_difference` of each task, averaged over tasks."""
    return Difference.average([paired_difference(*task) for task in zip(tasks, observations, strict=True)])


def errors_of(count: int, squares: Values, observations: float) -> Values:
    """Standard errors of `paired_difference` from the number of problems and their sums of squared deviations [rows]."""
    if count < 2:
        return np.ones_like(squares)
    return np.asarray(np.sqrt((squares + _add_floor(squares, observations)) / (count - 1) / count))


def covariance_of_means(differences: Values, observations: float) -> Values:
    """Covariance [rows, rows] of the means of `differences` [rows, problems], with the variances of `paired_difference`."""
    count = differences.shape[1]
    if count < 2:
        return np.eye(len(differences))  # nothing is known, as in `errors_of`
    centred = differences - differences.mean(axis=1, keepdims=True)
    squares = centred @ centred.T
    squares = squares + np.diag(_add_floor(squares.diagonal(), observations))
    return np.asarray(squares / (count - 1) / count)


def _add_floor(squares: Values, observations: float) -> Values:
    """These sums of squares with two more problems added."""
    floor = 2 / observations
    return np.asarray(floor / (1 + squares / floor)) if floor else np.zeros_like(squares)


def independent_difference(new: Values, old: Values, observations: float) -> Difference:
    """The difference of means over other problems; degrees of freedom by Welch and Satterthwaite."""
    half = average_differences([new, -old], [observations] * 2)
    return Difference(2 * half.value, 2 * half.error, half.freedom)


def holm(p_values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """Holm's adjusted p-values, in the order given; `weights` say how much of the error rate each one may use at first."""
    weights = weights or [1.0] * len(p_values)
    adjusted = [0.0] * len(p_values)
    highest, left = 0.0, sum(weights)
    for index in sorted(range(len(p_values)), key=lambda place: p_values[place] / weights[place]):
        highest = max(highest, min(1.0, left / weights[index] * p_values[index]))
        adjusted[index] = highest
        left -= weights[index]
    return adjusted


def any_of_runs(p_value: float, runs: int, seeds: int) -> float:
    """The chance that any of so many equal runs has a one-sided p-value this small against one frozen baseline.

    Dunnett's comparison of many with one control, for normal means: the runs share the baseline's noise, which is that of
    `seeds` runs, so that two differences correlate by `1 / (1 + seeds)`.
    """
    if runs <= 1:
        return p_value
    shared = 1 / (1 + seeds)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    spared = ndtr((-ndtri(p_value) - sqrt(shared) * nodes) / sqrt(1 - shared))
    # 1 - x^runs without loss of digits where x is close to 1.
    any_one = -np.expm1(runs * np.log(np.maximum(spared, 1e-300)))
    return float(np.clip(any_one @ weights / weights.sum(), p_value, 1.0))


def fit_chances(shares: Values, samples: float) -> tuple[Values, Values]:
    """Fit each problem's beta distribution to the share of its correct samples. Returns its two shape parameters.

    Over problems it has the run's mean, and its spread without the binomial noise of samples. So a problem that was never solved
    still has a chance.
    """
    mean = (shares.sum() * samples + 0.5) / (len(shares) * samples + 1)
    spread = float(shares.var(ddof=1)) / (mean * (1 - mean)) if len(shares) > 1 else 1.0
    agreement = np.clip((spread - 1 / samples) / (1 - 1 / samples), 0.01, 0.95) if samples > 1 else 0.5
    weight = 1 / agreement - 1
    correct = shares * samples
    return mean * weight + correct, (1 - mean) * weight + samples - correct


def as_values(values: Any) -> Values:
    return np.asarray(values, dtype=np.float64)


# Recovery, `(guided - base) / (reference - base)`

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

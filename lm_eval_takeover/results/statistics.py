"""Intervals, differences, tests and Recovery over problems, whose samples are nested in them.

A problem has one value in [0, 1]: the mean over its samples (Acc), an unbiased estimate from them (Pass@8), or 0 or 1 (Maj@8).
Problems are independent; samples of one problem are not, so problems are counted and never samples. Where two runs have the
same problems, their values are paired. Coverage: `benchmarks/interval_coverage.py`, docs/statistics.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import copysign, inf, sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import betaincinv, stdtr, stdtrit

Values = NDArray[np.float64]  # one per problem

CONFIDENCE = 0.95
_AGREEMENT = 1.0  # problems' worth of evidence that the samples of a problem all agree, if nothing else is known
_ROUNDING = 1e-24  # squares of deviations that are rounding errors


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

    def of_sizes(self, sizes: Values) -> Self:
        """The same from problems of these sizes, a few of which may carry the mean (`count_effective`)."""
        effective = count_effective(sizes)
        factor = (effective / (effective - 1)) / (len(sizes) / max(len(sizes) - 1, 1))
        return replace(self, error=self.error * sqrt(factor), freedom=effective - 1)

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


def mean_interval(values: Values, confidence: float = CONFIDENCE, clusters: Sequence[int] = ()) -> Interval:
    """The mean over problems with Wilson's score interval at the effective number of problems.

    `n_eff = N / deff`, where `deff` is the variance between problems over that of problems whose samples all agree,
    `(sum (x - m)^2 + 1) / (N m (1 - m) + 1)`. It is 1 where all samples of a problem agree, down to 1/8 where 8 are independent,
    and 1 at 0 of 240 or 240 of 240, where the data cannot tell. Student's t replaces the normal quantile, since `deff` is
    estimated (Dean and Pagano, J. Surv. Stat. Methodol. 3, 2015, compare such intervals); clusters count as `count_effective`
    says. Near 0 and 1 a one-sided exact bound replaces Wilson's nearer one (Brown, Cai and DasGupta, Stat. Sci. 16, 2001).
    """
    effective = count_effective(as_values(np.unique(clusters, return_counts=True)[1])) if clusters else len(values)
    values = by_cluster(values, clusters)
    mean = values.mean()
    low, high = bounds_of(len(values), mean, ((values - mean) ** 2).sum(), confidence, effective)
    return Interval(float(mean), float(low), float(high))


def bounds_of(
    count: int, mean: Values, squares: Values, confidence: float = CONFIDENCE, equal: float | None = None
) -> tuple[Values, Values]:
    """`mean_interval` from the number of problems, their means [rows] and their sums of squared deviations [rows].

    `equal` of one size would tell as much.
    """
    if count < 2:
        return np.zeros_like(mean), np.ones_like(mean)
    effect = (squares + _AGREEMENT) / (count * mean * (1 - mean) + _AGREEMENT)
    effective = count / effect
    z2 = float(stdtrit(max((equal or count) - 1, 1), (1 + confidence) / 2)) ** 2
    centre = (mean + z2 / (2 * effective)) / (1 + z2 / effective)
    reach = np.sqrt(z2 * (mean * (1 - mean) / effective + z2 / (4 * effective**2))) / (1 + z2 / effective)
    below, above = (_bound_exactly(share, effective, confidence) for share in (mean, 1 - mean))
    # At 0 and 1 the bound equals the mean; rounding errors are cut off.
    return np.clip(np.minimum(centre - reach, below), 0, mean), np.clip(np.maximum(centre + reach, 1 - above), mean, 1)


def _bound_exactly(share: Values, count: Values, confidence: float) -> Values:
    """Clopper and Pearson's lower bound of a share, one-sided."""
    successes = np.maximum(share * count, 1e-9)
    return np.asarray(betaincinv(successes, np.maximum(count - successes, 0) + 1, 1 - confidence))


def average_interval(parts: Sequence[Interval]) -> Interval:
    """The unweighted mean over tasks; distances to the bounds add in squares (Zou and Donner, Stat. Med. 27, 2008)."""
    value = sum(part.value for part in parts) / len(parts)
    below = sqrt(sum((part.value - part.low) ** 2 for part in parts)) / len(parts)
    above = sqrt(sum((part.high - part.value) ** 2 for part in parts)) / len(parts)
    return Interval(value, max(value - below, 0.0), min(value + above, 1.0))


def join_clusters(prompts: Sequence[str], groups: Sequence[str] = ()) -> tuple[int, ...]:
    """Number the clusters of problems: those of one prompt or group, themselves or through others. Empty labels join none.

    Nothing is returned where every problem stands alone, or where all are of one prompt and no groups were asked for.
    """
    count = len(prompts)
    ties = []
    for each in (prompts, groups):
        first = dict[str, int]()
        ties += [(first.setdefault(label, at), at) for at, label in enumerate(each) if label]
    matrix = coo_array((np.ones(len(ties)), tuple(np.array(ties, dtype=int).reshape(-1, 2).T)), (count, count))
    number, clusters = connected_components(matrix, directed=False)
    return tuple(clusters.tolist()) if number < count and (number > 1 or any(groups)) else ()


def count_effective(sizes: Values) -> float:
    """How many of one size tell as much as these: Kish's number, at least 2."""
    return max(float(sizes.sum() ** 2 / (sizes**2).sum()), 2.0)


def by_cluster(values: Values, clusters: Sequence[int]) -> Values:
    """Values of clusters from those of problems; the same ones where there are no clusters.

    Their mean is that over problems, and its error from them is the cluster-robust one: each is the sum of its problems'
    deviations, in units of a cluster of mean size.
    """
    if not clusters:
        return values
    sums = sum_clusters(values - values.mean(), clusters)
    return np.asarray(values.mean() + sums * (len(sums) / len(clusters)))


def sum_clusters(values: Values, clusters: Sequence[int]) -> Values:
    """Sums over the problems of each cluster; the values where there are no clusters."""
    return as_values(np.bincount(np.unique(clusters, return_inverse=True)[1], values)) if clusters else values


def paired_difference(differences: Values, shares: bool = True) -> Difference:
    """The mean of one difference per problem (or cluster).

    Problems that were not drawn may differ, even where hardly one of these does: that none of 30 differs does not show that none
    will. The variance counts them (`add_unseen`), except for values that are no shares.
    """
    centred = differences - differences.mean()
    squares = (centred**2).sum()
    squares = add_unseen(squares, (centred**3).sum()) if shares else squares
    return Difference(float(differences.mean()), float(errors_of(len(differences), squares)), max(len(differences) - 1, 1))


def average_differences(tasks: Sequence[Values]) -> Difference:
    """`paired_difference` of each task, averaged over tasks."""
    return Difference.average([paired_difference(task) for task in tasks])


def errors_of(count: int, squares: Values) -> Values:
    """Standard errors of means over so many problems from the sums of squared deviations [rows]."""
    return np.sqrt(squares / (count - 1) / count) if count > 1 else np.ones_like(squares)


def add_unseen(squares: Values, cubes: Values) -> Values:
    """Sums of squared deviations with what problems that were not drawn may add, from these and the sums of cubed ones.

    A problem that is won or lost whole adds 1 to `squares`. Where these are few, two more count, one won and one lost; they fade
    out with `exp(-squares / 1.5)`. Where large changes go one way, Student's t is too short on that side: of its correction for
    skewness (Johnson, JASA 73, 1978), `(1 + 2 z^2) / 6` times `cubes / squares`, both sides get the length.
    """
    return np.asarray(squares + 2 * np.exp(-squares / 1.5) + 1.5 * np.abs(cubes) / np.sqrt(squares + _ROUNDING))


def covariance_of_means(differences: Values) -> Values:
    """Covariance [rows, rows] of the means of `differences` [rows, 2 or more problems], with `paired_difference`'s variances."""
    count = differences.shape[1]
    centred = differences - differences.mean(axis=1, keepdims=True)
    squares = centred @ centred.T
    np.fill_diagonal(squares, add_unseen(squares.diagonal(), (centred**3).sum(axis=1)))
    return np.asarray(squares / (count - 1) / count)


def independent_difference(new: Values, old: Values) -> Difference:
    """The difference of means over other problems; degrees of freedom by Welch and Satterthwaite."""
    half = average_differences([new, -old])
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


def measure_recovery(tasks: Sequence[Values]) -> Interval | None:
    """Recovery of the unweighted means over tasks, each the values `[3, problems]` of guided row, base and reference.

    None unless the gap, from the base to the reference, is above 0 beyond noise. The interval is Fieller's: all R for which the
    mean of `gain - R gap` does not differ from 0. It is bounded exactly where the mean gap differs from 0, so both answers come
    from one test.
    """
    gains = [task[[0, 2]] - task[1] for task in tasks]  # of the guided row, and of the reference
    means = np.mean([pairs.mean(axis=1) for pairs in gains], axis=0)
    if means[1] <= 0 or any(pairs.shape[1] < 2 for pairs in gains):
        return None
    ratio, covariance, parts = means[0] / means[1], np.zeros((2, 2)), []
    line = np.array([1, -ratio])
    for pairs in gains:
        part = covariance_of_means(pairs)
        # Problems that were not drawn may leave the ratio, too, even where all of these lie on it.
        part[0, 0] += max(paired_difference(line @ pairs).error ** 2 - line @ part @ line, 0)
        covariance += part / len(tasks) ** 2
        parts.append((part[1, 1] / len(tasks) ** 2, pairs.shape[1] - 1))
    freedom = covariance[1, 1] ** 2 / sum(variance**2 / free for variance, free in parts)
    t2 = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) ** 2
    a = means[1] ** 2 - t2 * covariance[1, 1]
    if a <= 0:
        return None
    b = means[0] * means[1] - t2 * covariance[0, 1]
    c = means[0] ** 2 - t2 * covariance[0, 0]
    reach = sqrt(max(b * b - a * c, 0.0))
    return Interval(float(ratio), float((b - reach) / a), float((b + reach) / a))

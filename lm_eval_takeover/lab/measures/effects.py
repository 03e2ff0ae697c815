"""What one token does to the outcome: effects of single positions, by score, and in sum.

In come rows of positions, where host and donor draw different tokens and texts were continued behind either: `host` and `donor`
are lists of verdicts (one a continuation, the same random numbers at the same place), `effect` is the share of correct ones with
the donor's token minus that with the host's. `inclusion` is the probability that the position was drawn: each counts with its
inverse, so that all figures are of the population. Positions of one problem are not independent: intervals are over problems.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lm_eval_takeover.results.statistics import Interval, Values, bounds_of, paired_difference, within_shares

BINS = 10
GAIN = 0.8
LARGE = 0.25  # an effect above it is helpful, one below its negative harmful
_STEPS, _ROUNDS = 20, 200  # of the grid and of EM: more rounds fit the noise
_GRID = np.array([(a, b) for a in range(_STEPS + 1) for b in range(_STEPS + 1 - a)]) / _STEPS
EFFECTS = _GRID[:, 0] - _GRID[:, 1]
_TINY, _FEWEST = 1e-300, 1e-3
BEYOND = np.stack([EFFECTS > LARGE + 1e-9, EFFECTS < -LARGE - 1e-9], axis=1).astype(np.float64)  # helpful, harmful
EXAMPLES = "effect_examples.json"  # what a report shows
ALL, TAKEOVER, CONTROL = "all", "takeover", "control"
_SHOWN, _LIKELY = 3.84, 2.0  # by a likelihood ratio: chi-squared with one degree of freedom at 95 %, Akaike's criterion

_HELPFUL = tuple(f"{sign}{end}" for sign in ("helpful", "harmful") for end in ("", "_low", "_high"))
SUMMARY = ("task", "kind", "population", "positions", "effect", "low", "high", *_HELPFUL, "share_for_80")
BY_SCORE = ("kind", "score", "bin", "left", "right", "positions", "effect", "low", "high")
AUROC = ("kind", "score", "positions", "auroc", "low", "high")


def measure_position(host: Sequence[bool], donor: Sequence[bool]) -> dict[str, Any]:
    """Counts, effect and interval of one position, over its pairs of continuations."""
    pairs = np.asarray(donor, dtype=np.float64) - np.asarray(host, dtype=np.float64)
    mean = within_shares(paired_difference(pairs).interval())
    counts = {"correct_host": sum(host), "correct_donor": sum(donor), "continuations": len(pairs)}
    return counts | {"effect": mean.value, "low": mean.low, "high": mean.high}


def nested_mean(values: Values, problems: NDArray[Any], weights: Values | None = None) -> Interval:
    """The weighted mean over positions with its interval over problems.

    Each problem counts with its pseudo-value of the jackknife, `G m - (G - 1) m_(g)`: of G problems the mean, and that without
    this one. So an interval holds where the number of positions hangs on their effects.
    No interval is narrower than [-1, 1] for a single problem.
    """
    weights = np.ones(len(values)) if weights is None else weights
    _, index = np.unique(problems, return_inverse=True)
    sums, sizes = np.bincount(index, weights * values), np.bincount(index, weights)
    mean = float(sums.sum() / sizes.sum())
    if len(sizes) < 2:
        return Interval(mean, -1.0, 1.0)
    return within_shares(_jackknife(mean, (sums.sum() - sums) / (sizes.sum() - sizes)))


def _jackknife(value: float, without: Values) -> Interval:
    """The interval of a value over problems, from the values `[problems]` without each one."""
    count = len(without)
    reach = paired_difference(count * value - (count - 1) * without).reach()
    return Interval(value, value - reach, value + reach)


class Outcomes:
    """How the pairs of continuations of positions ended, for effects without their noise: an empirical Bayes estimate.

    A pair (the same random numbers behind either token) ends in one of three ways. Only the donor's text is correct, with
    probability `a`; only the host's, with `b`; or both texts are alike. The effect of a position is `a - b`. The distribution of
    (a, b) over positions is estimated from all of them: nonparametric maximum likelihood on a grid (Kiefer and Wolfowitz, 1956;
    Koenker and Mizera, J. Am. Stat. Assoc. 109, 2014), by EM from the even distribution.
    """

    def __init__(self, gained: NDArray[np.int64], lost: NDArray[np.int64], pairs: int, *, exact: bool = False) -> None:
        """`gained` and `lost` [positions] of so many pairs; `exact`: decoding is greedy, so there is no noise."""
        cells, self._cell = np.unique(np.stack([gained, lost], axis=1), axis=0, return_inverse=True)
        shares = np.column_stack([cells, pairs - cells.sum(axis=1)])
        chances = np.column_stack([_GRID, 1 - _GRID.sum(axis=1)])
        if exact:
            nearest = np.abs(shares[:, np.newaxis] / pairs - chances).sum(axis=2).argmin(axis=1)
            self._likelihood = np.eye(len(_GRID))[nearest]
        else:
            logs = shares @ np.log(np.maximum(chances, 1e-9)).T
            self._likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))

    def fit(self, weights: Values, where: Values | None = None) -> Values:
        """The distribution `[..., grid]` of positions with these weights `[..., positions]`; 0 where `where` `[grid]` is 0."""
        counts = self.count(weights)
        start = np.ones(len(_GRID)) if where is None else where
        mixture = np.broadcast_to(start / start.sum(), (*counts.shape[:-1], len(_GRID)))
        for _ in range(_ROUNDS):
            mixture = mixture * ((counts / np.maximum(mixture @ self._likelihood.T, _TINY)) @ self._likelihood)
        return np.asarray(mixture)

    def count(self, weights: Values) -> Values:
        """The share of each kind of outcome `[..., cells]`."""
        counts = np.asarray(weights @ np.eye(len(self._likelihood))[self._cell])
        return np.asarray(counts / counts.sum(axis=-1, keepdims=True))

    def ratio(self, weights: Values, mixture: Values, where: Values) -> float:
        """Twice the difference of log-likelihoods between the `mixture` of these weights and one with nothing at `where`."""
        logs = [np.log(np.maximum(fitted @ self._likelihood.T, _TINY)) for fitted in (mixture, self.fit(weights, 1 - where))]
        positions = weights.sum() ** 2 / np.square(weights).sum()
        return float(2 * positions * self.count(weights) @ (logs[0] - logs[1]))

    def expect(self, mixture: Values, values: Values) -> Values:
        """The mean for each position of values `[..., grid, k]`, given its outcomes: `[..., positions, k]`."""
        joint = mixture[..., np.newaxis, :] * self._likelihood
        return np.asarray((joint @ values / joint.sum(axis=-1, keepdims=True))[..., self._cell, :])


class Positions:
    """Positions of one kind, as arrays. `exact`: decoding is greedy, so that effects have no noise."""

    def __init__(self, frame: pl.DataFrame, *, exact: bool = False) -> None:
        self.frame, self.exact = frame, exact
        self.effects, self.problems = frame["effect"].to_numpy(), frame["problem"].to_numpy()
        self.weights = 1 / frame["inclusion"].to_numpy()
        self.host, self.donor = (np.array(frame[name].to_list(), dtype=bool) for name in ("host", "donor"))
        self.pairs = self.host.shape[1]
        gained, lost = ((a & ~b).sum(axis=1) for a, b in ((self.donor, self.host), (self.host, self.donor)))
        self.outcomes = Outcomes(gained, lost, self.pairs, exact=exact)

    def mean(self, inside: NDArray[np.bool_] | None = None) -> Interval:
        inside = np.ones(len(self.effects), dtype=bool) if inside is None else inside
        return nested_mean(self.effects[inside], self.problems[inside], self.weights[inside])

    @cached_property
    def parts(self) -> Values:
        """How positions count, `[1 + problems, positions]`: for all problems, and without each one where there are several."""
        names, index = np.unique(self.problems, return_inverse=True)
        parts = np.concatenate([np.ones((1, len(names))), 1 - np.eye(len(names))])[: 1 if len(names) < 2 else None]
        weights = parts[:, index] * self.weights
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    @cached_property
    def mixtures(self) -> Values:
        """The distribution on the grid by part, `[1 + problems, grid]`."""
        return self.outcomes.fit(self.parts)

    def _ratio(self, where: Values) -> float:
        return self.outcomes.ratio(self.weights, self.mixtures[0], where)

    @cached_property
    def has_both(self) -> bool:
        """Whether there are helpful positions, and others, by Akaike's criterion."""
        return all(self._ratio(where) > _LIKELY for where in (BEYOND[:, 0], 1 - BEYOND[:, 0]))

    @cached_property
    def ranks(self) -> "AurocRanks":
        return AurocRanks(self)

    def describe_beyond(self) -> dict[str, float | None]:
        """The shares of helpful and harmful positions with their intervals; null where one pair tells nothing of its noise."""
        if self.pairs < 2 and not self.exact:
            return dict.fromkeys(_HELPFUL)
        shares, without = self.mixtures[0] @ BEYOND, self.mixtures[1:] @ BEYOND
        squares = np.square(without - without.mean(axis=0)).sum(axis=0) if len(without) else shares
        # Wilson's interval with the variance of the jackknife; from 0 where a likelihood ratio does not show that there are any.
        low, high = bounds_of(max(len(without), 1), shares, squares * (len(without) - 1) ** 2)
        low = low * [self._ratio(beyond) > _SHOWN for beyond in BEYOND.T]
        return dict(zip(_HELPFUL, np.stack([shares, low, high], axis=1).ravel().tolist(), strict=True))

    def share_of_gain(self) -> float | None:
        """The smallest share of positions whose effects add up to 80 % of the total; None where the total is not positive."""
        if len(self.effects) < 2 or self.pairs < 2:
            return None
        # One half of the continuations puts them in order, the other adds up: else what is large by chance counts as large.
        halves = [self.donor[:, half::2].mean(axis=1) - self.host[:, half::2].mean(axis=1) for half in (0, 1)]
        shares = []
        for by, measured in (halves, halves[::-1]):
            order = np.argsort(-by, kind="stable")
            weights = self.weights[order]
            sums = (weights * measured[order]).cumsum()
            if sums[-1] <= 0:
                return None
            shares.append(weights.cumsum()[np.argmax(sums >= GAIN * sums[-1])] / weights.sum())
        return float(np.mean(shares))


def split_kinds(frame: pl.DataFrame, *, exact: bool = False) -> Iterator[tuple[str, Positions]]:
    """Takeovers, controls, and both where there are both."""
    for (kind,), group in frame.group_by(["kind"], maintain_order=True):
        yield str(kind), Positions(group, exact=exact)
    if frame["kind"].n_unique() > 1:
        yield ALL, Positions(frame, exact=exact)


def add_shrunk(frame: pl.DataFrame, *, exact: bool = False) -> pl.DataFrame:
    """With `shrunk`: the effect to expect of a position, given its continuations and all others of its kind."""
    kinds = [positions for kind, positions in split_kinds(frame, exact=exact) if kind != ALL]
    grid = EFFECTS[:, np.newaxis]
    return pl.concat([kind.frame.with_columns(shrunk=kind.outcomes.expect(kind.mixtures[0], grid)[:, 0]) for kind in kinds])


def tabulate_summary(frame: pl.DataFrame, *, exact: bool = False) -> pl.DataFrame:
    """By task and kind: size of the population, mean effect, shares of helpful and harmful positions, where the gain sits."""
    rows = []
    tasks = [(task, group) for (task,), group in frame.group_by(["task"], maintain_order=True)]
    for task, of_task in [*tasks, (ALL, frame)]:
        for kind, positions in split_kinds(of_task, exact=exact):
            mean = positions.mean()
            counts = {"population": float(positions.weights.sum()), "positions": len(positions.effects)}
            row = {"task": task, "kind": kind, **counts, "effect": mean.value, "low": mean.low, "high": mean.high}
            rows.append(row | positions.describe_beyond() | {"share_for_80": positions.share_of_gain()})
    floats = dict.fromkeys([*_HELPFUL, "share_for_80"], pl.Float64)
    return pl.DataFrame(rows, schema_overrides=floats).select(SUMMARY)


def _split(frame: pl.DataFrame, scores: Sequence[str], *, exact: bool = False) -> Iterator[tuple[str, str, Positions]]:
    """By kind and score, the positions whose score is known."""
    whole = list(split_kinds(frame, exact=exact))
    for score in scores:
        known = frame.filter(pl.col(score).is_finite())
        for kind, positions in whole if len(known) == len(frame) else split_kinds(known, exact=exact):
            yield kind, score, positions


def tabulate_by_score(frame: pl.DataFrame, scores: Sequence[str]) -> pl.DataFrame:
    """The mean effect by tenth of the population by each score; equal scores stay in one bin."""
    rows = []
    for kind, score, positions in _split(frame, scores):
        values = positions.frame[score].to_numpy()
        order = np.argsort(values, kind="stable")
        below = positions.weights[order].cumsum() / positions.weights.sum()
        places = np.searchsorted(below, np.arange(1, BINS) / BINS - 1e-9)
        bins = np.searchsorted(np.unique(values[order][places]), values, "left")
        for number, inside in enumerate(bins == each for each in np.unique(bins)):
            mean, bounds = positions.mean(inside), (float(values[inside].min()), float(values[inside].max()))
            rows.append((kind, score, number, *bounds, int(inside.sum()), mean.value, mean.low, mean.high))
    return pl.DataFrame(rows, schema=BY_SCORE, orient="row", infer_schema_length=None)


def tabulate_auroc(frame: pl.DataFrame, scores: Sequence[str], *, exact: bool = False) -> pl.DataFrame:
    """How well each score tells helpful positions from others; null where all or none may be."""
    rows = []
    for kind, score, positions in _split(frame, scores, exact=exact):
        area = measure_auroc(positions, positions.frame[score].to_numpy().astype(np.float64))
        rows.append((kind, score, len(positions.effects), *area))
    return pl.DataFrame(rows, schema=AUROC, schema_overrides=dict.fromkeys(AUROC[3:], pl.Float64), orient="row")


def measure_auroc(positions: Positions, values: Values) -> tuple[float | None, float | None, float | None]:
    """The AUROC of a score for helpful positions with its interval over problems; null as in `tabulate_auroc`."""
    if (positions.pairs < 2 and not positions.exact) or not positions.has_both:
        return None, None, None
    area, *without = positions.ranks.areas(values)
    mean = _jackknife(area, np.array(without)) if without else Interval(area, np.nan, np.nan)
    auroc, low, high = (None if np.isnan(end) else float(np.clip(end, 0, 1)) for end in (mean.value, mean.low, mean.high))
    return auroc, low, high


class AurocRanks:
    """How the rank of a score hangs on the effect, from positions whose effects are known but for noise.

    Ranks go from 0 to 1, equal scores share the middle one. The AUROC is then linear in the mean rank `m` of helpful positions:
    `1/2 + (m - 1/2) / (1 - p)`, where `p` is their share. The mean rank at each effect is taken to be a sum of four shapes:
    the effect's own rank among effects, whether it is helpful, what it gains and what it loses. Ranks are regressed on the shapes
    to expect of each position given its continuations, which their noise does not bias (regression calibration; Carroll et al.,
    Measurement Error in Nonlinear Models, 2006). All is done for all problems, and without each one.
    """

    _RIDGE = np.array([0.01, 1, 1, 1])  # of each shape, in positions

    def __init__(self, positions: Positions) -> None:
        self._weights, mixture = positions.parts, positions.mixtures[:, np.newaxis]  # [parts, 1, grid]
        _, step = np.unique(EFFECTS.round(9), return_inverse=True)
        sizes = mixture @ np.eye(step.max() + 1)[step]
        ranks = (sizes.cumsum(axis=2) - sizes / 2)[:, 0, step]
        fixed = np.stack([BEYOND[:, 0], np.maximum(EFFECTS, 0), np.minimum(EFFECTS, 0)], axis=1)
        shapes = np.concatenate([ranks[..., np.newaxis], np.broadcast_to(fixed, (*ranks.shape, 3))], axis=2)
        shapes = shapes - mixture @ shapes
        shapes = shapes / np.maximum(np.sqrt(mixture @ shapes**2), 0.1)
        self._share = mixture[:, 0] @ BEYOND[:, 0]
        self._helpful = ((mixture * BEYOND[:, 0]) @ shapes)[:, 0] / np.maximum(self._share, _FEWEST)[:, np.newaxis]
        self._expected = positions.outcomes.expect(mixture[:, 0], shapes)
        self._weighted = (self._weights[..., np.newaxis] * self._expected).transpose(0, 2, 1)
        self._products = self._weighted @ self._expected

    def areas(self, values: Values) -> Values:
        """The AUROC of a score, of all problems and without each one."""
        order = np.argsort(values, kind="stable")
        starts = np.flatnonzero(np.diff(values[order], prepend=np.nan) != 0)
        sizes = np.add.reduceat(self._weights[:, order], starts, axis=1)
        ranks = np.empty_like(self._weights)
        ranks[:, order] = np.repeat(sizes.cumsum(axis=1) - sizes / 2, np.diff([*starts, len(values)]), axis=1) - 0.5
        seen = self._weighted @ ranks[..., np.newaxis]
        slopes = np.linalg.solve(self._products + np.diag(self._RIDGE / len(values)), seen)
        means = (self._helpful[:, np.newaxis] @ slopes)[:, 0, 0]
        return np.asarray(0.5 + means / np.maximum(1 - self._share, _FEWEST))

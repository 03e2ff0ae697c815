"""What one token does to the outcome: effects of single positions, by score, and in sum.

In come rows of positions, where host and donor draw different tokens and a text was continued behind either: `host` and
`donor` are lists of verdicts (one a continuation, the same random numbers at the same place), `problem` names the problem.
`effect` is the share of correct continuations with the donor's token minus that with the host's token.

Positions of one problem are not independent, so intervals are over problems: of the ratio of sums over problems, linearised
(Cochran, Sampling Techniques, 6.3), by `results.statistics.paired_difference`.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lm_eval_takeover.analysis.failure import count_pairs
from lm_eval_takeover.analysis.pooling import interval
from lm_eval_takeover.results.statistics import CONFIDENCE, Interval, paired_difference, within_shares

LARGE = 0.25  # an effect above it is helpful, one below its negative harmful
BINS = 10
GAIN = 0.8
TAKEOVER, CONTROL = "takeover", "control"

SUMMARY = ("kind", "positions", "problems", "effect", "low", "high", "helpful", "harmful", "share_for_80")
BY_SCORE = ("score", "bin", "left", "right", "positions", "effect", "low", "high")
AUROC = ("score", "positions", "above", "auroc", "low", "high")

Values = NDArray[np.float64]


def nested_mean(values: Values, problems: NDArray[Any], samples: int, confidence: float = CONFIDENCE) -> Interval:
    """The mean over positions with its interval over problems; `samples` continuations are behind each value.

    Each problem counts as one observation `m + (sum - m n) G / N` with its `n` of `N` positions: their mean is `m`, and their
    variance that of the linearised ratio. Positions of one problem agree in part, so the samples behind a problem are between
    `samples` and that times its positions: the geometric mean counts. No interval is narrower than [-1, 1] for a single problem.
    """
    _, index = np.unique(problems, return_inverse=True)
    sums, sizes = np.bincount(index, values), np.bincount(index)
    mean = float(values.mean())
    if len(sizes) < 2:
        return Interval(mean, -1.0, 1.0)
    shares = mean + (sums - mean * sizes) * len(sizes) / len(values)
    found = paired_difference(shares, samples * sqrt(len(values) / len(sizes))).interval(confidence)
    return within_shares(Interval(mean, found.low, found.high))


def measure_position(host: Sequence[bool], donor: Sequence[bool]) -> dict[str, Any]:
    """Counts, effect and interval of one position, over its pairs of continuations."""
    pairs = np.asarray(donor, dtype=np.float64) - np.asarray(host, dtype=np.float64)
    found = within_shares(paired_difference(pairs, 1).interval())
    return {
        "correct_host": sum(host),
        "correct_donor": sum(donor),
        "continuations": len(pairs),
        "effect": found.value,
        "low": found.low,
        "high": found.high,
    }


def _fewest(positions: pl.DataFrame) -> int:
    """Continuations behind a position."""
    return int(positions["continuations"].to_numpy().min())


def tabulate_summary(positions: pl.DataFrame) -> pl.DataFrame:
    """A row for takeovers and one for controls: mean effect, shares of helpful and harmful positions, where the gain sits."""
    rows = []
    for (kind,), group in positions.group_by(["kind"], maintain_order=True):
        effects = group["effect"].to_numpy()
        mean = nested_mean(effects, group["problem"].to_numpy(), _fewest(group))
        rows.append(
            {
                "kind": kind,
                "positions": len(group),
                "problems": group["problem"].n_unique(),
                "effect": mean.value,
                "low": mean.low,
                "high": mean.high,
                "helpful": float((effects > LARGE).mean()),
                "harmful": float((effects < -LARGE).mean()),
                "share_for_80": share_of_gain(group["host"].to_list(), group["donor"].to_list()),
            }
        )
    return pl.DataFrame(rows, schema_overrides={"share_for_80": pl.Float64}).select(SUMMARY)


def share_of_gain(host: Sequence[Sequence[bool]], donor: Sequence[Sequence[bool]], gain: float = GAIN) -> float | None:
    """The smallest share of positions whose effects add up to `gain` of the total; None where the total is not positive.

    Half of the continuations put the positions in order, the other half adds up, and the other way round: an effect that is
    large by chance would otherwise count as large.
    """
    if len(host) < 2 or min(map(len, host)) < 2:
        return None
    effects = np.stack(
        [
            [np.mean(one[half::2]) - np.mean(other[half::2]) for one, other in zip(donor, host, strict=True)]
            for half in (0, 1)
        ]
    )
    shares = []
    for order_by, add_up in ((0, 1), (1, 0)):
        order = np.argsort(-effects[order_by], kind="stable")
        sums = effects[add_up][order].cumsum()
        if sums[-1] <= 0:
            return None
        shares.append((int(np.argmax(sums >= gain * sums[-1])) + 1) / len(sums))
    return float(np.mean(shares))


def tabulate_by_score(positions: pl.DataFrame, scores: Sequence[str]) -> pl.DataFrame:
    """The mean effect by decile of each score, over takeovers and controls; equal scores stay in one bin."""
    rows = []
    for score in scores:
        group = positions.filter(pl.col(score).is_finite())
        values, effects, problems = (group[name].to_numpy() for name in (score, "effect", "problem"))
        if not len(values):
            continue
        edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1], method="inverted_cdf"))
        bins = np.searchsorted(edges, values, "left")
        for number, inside in enumerate(bins == one for one in np.unique(bins)):
            mean = nested_mean(effects[inside], problems[inside], _fewest(group))
            left, right = float(values[inside].min()), float(values[inside].max())
            row = (score, number, left, right, int(inside.sum()), mean.value, mean.low, mean.high)
            rows.append(dict(zip(BY_SCORE, row, strict=True)))
    return pl.DataFrame(rows, infer_schema_length=None)


def tabulate_auroc(positions: pl.DataFrame, scores: Sequence[str]) -> pl.DataFrame:
    """How well each score tells effects above 0.25 from others, over takeovers and controls; null where all are of one kind."""
    rows = []
    for score in scores:
        group = positions.filter(pl.col(score).is_finite())
        values, problems = group[score].to_numpy().astype(np.float64), group["problem"].to_numpy()
        large = group["effect"].to_numpy() > LARGE
        auroc: float | None = None
        bounds: tuple[float | None, float | None] = None, None
        if 0 < large.sum() < len(large):
            pairs = count_pairs(problems, values, large.astype(np.float64))
            auroc, bounds = float(pairs.areas()[0]), interval(pairs.resample(score)[:, 0])
        rows.append(dict(zip(AUROC, (score, len(group), int(large.sum()), auroc, *bounds), strict=True)))
    return pl.DataFrame(rows, schema_overrides={"auroc": pl.Float64, "low": pl.Float64, "high": pl.Float64})

"""How alike both models are along rollouts: near-zero scores, the guide's first choices, entropies ('Sparse but Critical')."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lm_eval_takeover.lab.analysis.pooling import pool_ratios, tabulate_ratios
from lm_eval_takeover.lab.analysis.tokens import SampleTokens

THRESHOLDS = (0.001, 0.01, 0.1)  # nats: our own choice
SETS = ("all", "peaks")  # all tokens of a sample, and its top 1 % by the score
SEEN = ("guide_top_rank", "shared_top5", "shared_top10")
MEASURES = ("rank_1", "top_5", "top_10", "shared_5", "shared_10")
ENTROPIES = ("base_entropy", "guide_entropy")
EDGES = np.array([0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, np.log(2)])  # nats of js


def measure_near(sample: SampleTokens, score: str) -> dict[str, Any]:
    """How many scores lie below each threshold."""
    counts = np.searchsorted(sample.ascending(score), np.array(THRESHOLDS, np.float32))
    return {"below": counts.astype(np.int64), "tokens": len(sample)}


def tabulate_near(measured: pl.DataFrame) -> pl.DataFrame:
    """The share of near-zero positions by task, score and threshold, over all tokens."""
    return tabulate_ratios(measured, "below", "tokens", [{"threshold": edge} for edge in THRESHOLDS], value="share")


def measure_choices(sample: SampleTokens, score: str) -> dict[str, Any] | None:
    """Of the guide's likeliest token: how often it is the base's, or in its top 5 or 10; and the tokens that both tops share."""
    if not sample.has_peaks(score):
        return None
    columns = [sample.columns[name] for name in SEEN]
    peaks = np.flatnonzero(sample.top(score, 1))
    sums = [*sample.once("choices", lambda: _count(*columns)), *_count(*(column[peaks] for column in columns))]
    return {"sums": np.array(sums), "tokens": np.repeat([len(sample), len(peaks)], len(MEASURES))}


def _count(rank: NDArray[Any], shared_5: NDArray[Any], shared_10: NDArray[Any]) -> list[float]:
    """In the order of `MEASURES`; of the last two the sums of shares."""
    ranks = [float(np.count_nonzero(rank <= most)) for most in (1, 5, 10)]
    return [*ranks, shared_5.sum() / 5, shared_10.sum() / 10]


def tabulate_choices(measured: pl.DataFrame) -> pl.DataFrame:
    """By task and score, over all tokens and at peaks."""
    labels = [{"set": chosen, "measure": name} for chosen, name in product(SETS, MEASURES)]
    return tabulate_ratios(measured, "sums", "tokens", labels, value="value")


def measure_entropies(sample: SampleTokens, score: str) -> dict[str, Any] | None:
    """Sums of both models' entropies by bin of js, the base's first; None for other scores."""
    if score != "js":
        return None
    above = sample.score("js") >= EDGES[1:-1, np.newaxis].astype(np.float32)
    bins = np.add.reduce(above.view(np.uint8), 0, dtype=np.uint8).astype(np.intp)  # twice as fast as searchsorted
    sums = [np.bincount(bins, sample.columns[name], len(EDGES) - 1) for name in ENTROPIES]
    tokens = np.bincount(bins, minlength=len(EDGES) - 1)
    return {"sums": np.concatenate(sums), "tokens": np.tile(tokens, len(ENTROPIES))}


def tabulate_entropies(measured: pl.DataFrame) -> pl.DataFrame:
    """Mean entropies by task and bin of js; null in a bin without tokens."""
    rows = []
    for (task,), ratio in pool_ratios(measured, "sums", "tokens", keys=()):
        for place, (left, right) in enumerate(pairwise(EDGES.tolist())):
            row = {"task": task, "bin": place, "left": left, "right": right, "tokens": int(ratio.below[place])}
            for number, name in enumerate(ENTROPIES):
                of_name = place + number * (len(EDGES) - 1)
                row |= ratio.estimates.describe(of_name, name, f"{name}_low", f"{name}_high")
            rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)

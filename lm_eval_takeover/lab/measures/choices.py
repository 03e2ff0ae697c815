"""How alike both models are along rollouts: near-zero scores, the guide's first choices, entropies ('Sparse but Critical').

Of several guides on the texts of one base run: how each differs from the base, and how far their decisions coincide.
"""

import re
from collections.abc import Iterator
from hashlib import blake2b
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lm_eval_takeover.lab.measures.concentration import SHARES, measure_concentration
from lm_eval_takeover.lab.measures.pooling import pool_ratios, tabulate_ratios
from lm_eval_takeover.lab.measures.tokens import SampleTokens

THRESHOLDS = (0.001, 0.01, 0.1)  # nats: our own choice
SETS = ("all", "peaks")  # all tokens of a sample, and its top 1 % by the score
SEEN = ("guide_top_rank", "shared_top5", "shared_top10")
MEASURES = ("rank_1", "top_5", "top_10", "shared_5", "shared_10")
ENTROPIES = ("base_entropy", "guide_entropy")
EDGES = np.array([0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, np.log(2)])  # nats of js
_OWN = ("gini", f"top{SHARES[-1]}", "far", *(f"peaks_{name}" for name in MEASURES))
_STEP = re.compile(r"(?:^|(?:step|checkpoint)\D?)(\d+)$")
_KEYS = ["task", "doc_id", "sample", "score", "text"]


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


def find_step(name: str) -> int | None:
    """The step of training that a revision or a name ends with."""
    found = _STEP.search(name)
    return int(found[1]) if found else None


def measure_guide(sample: SampleTokens, score: str) -> dict[str, Any] | None:
    """Its Gini and largest scores, tokens from 0.1 nats, the guide's first choices at peaks, and the top sets as bits.

    `text` is a digest of the tokens: sets are of the same positions where texts are the same.
    """
    if not (sample.has_mass(score) and (choices := measure_choices(sample, score))):
        return None
    spread, k = measure_concentration(sample, score)["sums"], len(MEASURES)
    far = np.count_nonzero(sample.score(score) >= THRESHOLDS[-1])
    above = [spread[0], spread[len(SHARES)], far, *choices["sums"][k:]]
    below = [1, 1, len(sample), *choices["tokens"][k:]]
    sets = np.packbits(sample.tops(score, SHARES), axis=1)
    text = blake2b(sample.columns["token_id"].tobytes(), digest_size=16).digest()
    return {"above": np.array(above, float), "below": np.array(below, float), "sets": sets.tobytes(), "text": text}


def tabulate_guides(measured: pl.DataFrame) -> pl.DataFrame:
    """By guide its measures; by two guides, `versus` the second, over texts of both the mean IoU of their top 1, 5 and 8 %."""
    own = tabulate_ratios(measured, "above", "below", [{"measure": n} for n in _OWN], "value", keys=["guide", "score"])
    pairs = list(_pair_guides(measured))
    if not pairs:
        return own.with_columns(versus=pl.lit(None, pl.String))
    labels = [{"measure": f"iou_top{percent}"} for percent in SHARES]
    keys = ["guide", "versus", "score"]
    both = tabulate_ratios(pl.concat(pairs), "iou", "samples", labels, "value", keys=keys)
    return pl.concat([own, both], how="diagonal")


def _pair_guides(measured: pl.DataFrame) -> Iterator[pl.DataFrame]:
    for guide, other in combinations(measured["guide"].unique(maintain_order=True), 2):
        joined = measured.filter(guide=guide).join(measured.filter(guide=other), on=_KEYS, maintain_order="left")
        iou = []
        for sets in joined.select("sets", "sets_right").iter_rows():  # of bits, each share filled up to whole bytes
            a, b = (np.unpackbits(np.frombuffer(bits, np.uint8).reshape(len(SHARES), -1), axis=1) for bits in sets)
            iou.append((a & b).sum(axis=1) / (a | b).sum(axis=1))
        if iou:
            values = pl.Series(np.array(iou))
            yield joined.select(*_KEYS, guide=pl.lit(guide), versus=pl.lit(other), iou=values, samples=pl.lit(1))

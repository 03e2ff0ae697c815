"""Several guides on the texts of one base run: how each differs from the base, and how far their decisions coincide."""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl

from lm_eval_takeover.analysis.choices import MEASURES, THRESHOLDS, measure_choices
from lm_eval_takeover.analysis.concentration import SHARES, measure_concentration
from lm_eval_takeover.analysis.pooling import tabulate_ratios
from lm_eval_takeover.analysis.tokens import SampleTokens

_OWN = ("gini", f"top{SHARES[-1]}", "far", *(f"peaks_{name}" for name in MEASURES))
STEP = re.compile(r"(?:^|(?:step|checkpoint)\D?)(\d+)$")  # of training, in a revision or a name
_KEYS = ["task", "doc_id", "sample", "score"]


def measure_guide(sample: SampleTokens, score: str) -> dict[str, Any] | None:
    """Its Gini and largest scores, tokens from 0.1 nats, the guide's first choices at peaks, and the top sets as bits."""
    if not (sample.has_mass(score) and (choices := measure_choices(sample, score))):
        return None
    spread, k = measure_concentration(sample, score)["sums"], len(MEASURES)
    far = np.count_nonzero(sample.score(score) >= THRESHOLDS[-1])
    above = [spread[0], spread[len(SHARES)], far, *choices["sums"][k:]]
    below = [1, 1, len(sample), *choices["tokens"][k:]]
    sets = np.packbits(sample.tops(score, SHARES), axis=1)
    return {"above": np.array(above, float), "below": np.array(below, float), "sets": sets.tobytes()}


def tabulate_guides(measured: pl.DataFrame) -> pl.DataFrame:
    """By guide its measures; by two guides, `versus` the second, the mean over samples of the IoU of their top 1, 5 and 8 %."""
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
        sets = ([_read_sets(bits) for bits in joined[name]] for name in ("sets", "sets_right"))
        if iou := [(a & b).sum(axis=1) / (a | b).sum(axis=1) for a, b in zip(*sets, strict=True)]:
            values = pl.Series(np.array(iou))
            yield joined.select(*_KEYS, guide=pl.lit(guide), versus=pl.lit(other), iou=values, samples=pl.lit(1))


def _read_sets(bits: bytes) -> Any:
    """The top sets `[shares, tokens]`, 0 or 1, filled up to whole bytes."""
    return np.unpackbits(np.frombuffer(bits, np.uint8).reshape(len(SHARES), -1), axis=1)

"""Several guides on the texts of one base run: how each differs from the base, and how far their decisions coincide."""

import re
from collections.abc import Iterator
from hashlib import blake2b
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl

from lm_eval_takeover.lab.analysis.choices import MEASURES, THRESHOLDS, measure_choices
from lm_eval_takeover.lab.analysis.concentration import SHARES, measure_concentration
from lm_eval_takeover.lab.analysis.pooling import tabulate_ratios
from lm_eval_takeover.lab.analysis.tokens import SampleTokens

_OWN = ("gini", f"top{SHARES[-1]}", "far", *(f"peaks_{name}" for name in MEASURES))
_STEP = re.compile(r"(?:^|(?:step|checkpoint)\D?)(\d+)$")
_KEYS = ["task", "doc_id", "sample", "score", "text"]


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

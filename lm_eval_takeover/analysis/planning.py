"""Planning and execution tokens at peaks and takeovers (appendix B.2, Tables 1, 5 and 6, equation 10).

The rules lie in `token_classes.toml`. The vocabulary is classified once; along a text only single letters need their neighbours.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lm_eval_takeover.analysis.pooling import MEAN, averaged_tasks
from lm_eval_takeover.analysis.tokens import SampleTokens

RULES = Path(__file__).with_name("token_classes.toml")
CLASSES = ("planning", "execution")
NONE, PLANNING, EXECUTION, LETTER, WORD = range(5)  # of a vocabulary entry; the last two need their neighbours

Codes = NDArray[np.int8]


def classify_vocabulary(texts: Sequence[str]) -> Codes:
    """A code for each decoded token `[vocab]`."""
    rules = tomllib.loads(RULES.read_text(encoding="utf-8"))
    planning = {word for words in rules["planning"].values() for word in words}
    execution = re.compile("|".join(f"(?:{pattern})" for pattern in rules["execution"].values()))
    excluded, letter = re.compile(rules["excluded"]["marks"]), re.compile(rules["variables"]["letter"])
    words = set(rules["variables"]["words"])

    def classify(text: str) -> int:
        token = text.strip().lower()
        if token in planning:
            return PLANNING
        if execution.fullmatch(token) and not excluded.fullmatch(token):
            return EXECUTION
        if letter.fullmatch(token):
            return WORD if token in words else LETTER
        return NONE

    return np.array([classify(text) for text in texts], dtype=np.int8)


def classify_text(vocabulary: Codes, tokens: NDArray[Any]) -> Codes:
    """NONE, PLANNING or EXECUTION of each token of a text `[tokens]`: letters are variables beside execution tokens."""
    codes = vocabulary[tokens]
    letters = codes >= LETTER
    if letters.any():
        execution = np.zeros(len(codes) + 2, dtype=np.int8)
        execution[1:-1] = codes == EXECUTION
        beside = execution[:-2] + execution[2:]  # neighbours that are
        variables = beside >= np.where(codes == WORD, 2, 1)
        codes = np.where(letters, np.where(variables, EXECUTION, NONE), codes)
    return np.asarray(codes, dtype=np.int8)


def count_classes(codes: Codes) -> NDArray[np.int64]:
    """How many tokens are planning, and how many execution: `[2]`."""
    return np.bincount(codes, minlength=3)[1:3]


def measure_peaks(sample: SampleTokens, score: str) -> dict[str, Any]:
    """Counts by class in the top 1 % of a base rollout by this score, and in all of it; `codes` is a column of the sample."""
    codes = sample.columns["codes"]
    return {"in_set": count_classes(codes[sample.top(score, 1)]), "in_base": count_classes(codes)}


def tabulate_planning(measured: pl.DataFrame) -> pl.DataFrame:
    """Tables 1, 5 and 6: shares by class among classifiable tokens in a set and in base rollouts, and their quotient.

    `measured` has a row per sample with `task, run, set, score` and the counts `in_set`, `in_base` `[2]`. Counts are pooled over
    samples, and over tasks for `mean`. Equation (10): enrichment is share_set / share_base.
    """
    keys = ["run", "set", "score"]
    tasks = averaged_tasks(measured["task"].unique(maintain_order=True).to_list())
    pooled = measured.filter(pl.col("task").is_in(tasks)).with_columns(pl.lit(MEAN).alias("task"))
    rows = []
    for (task, *key), group in pl.concat([measured, pooled]).group_by(["task", *keys], maintain_order=True):
        in_set, in_base = (group[name].to_numpy().sum(axis=0, dtype=np.int64) for name in ("in_set", "in_base"))
        for place, name in enumerate(CLASSES):
            share_set, share_base = (_share(int(c[place]), int(c.sum())) for c in (in_set, in_base))
            rows.append(
                {"task": task, **dict(zip(keys, key, strict=True)), "class": name}
                | {"in_set": int(in_set[place]), "of_set": int(in_set.sum())}
                | {"in_base": int(in_base[place]), "of_base": int(in_base.sum())}
                | {"share_set": share_set, "share_base": share_base}
                | {"enrichment": share_set / share_base if share_set is not None and share_base else None}
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def _share(count: int, total: int) -> float | None:
    return count / total if total else None

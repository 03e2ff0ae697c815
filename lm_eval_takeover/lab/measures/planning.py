"""Planning and execution tokens at peaks and takeovers (appendix B.2, Tables 1, 5 and 6, equation 10).

The rules lie in `token_classes.toml`. The vocabulary is classified once; along a text only single letters need their neighbours.
"""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lm_eval_takeover.lab.measures.pooling import MEAN, describe, divide, sum_samples
from lm_eval_takeover.lab.sample_tokens import SampleTokens
from lm_eval_takeover.results.summary import choose_averaged

RULES = Path(__file__).with_name("token_classes.toml")
CLASSES = ("planning", "execution")
NONE, PLANNING, EXECUTION, LETTER, WORD = range(5)  # of a vocabulary entry; the last two need their neighbours

Codes = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class TokenClasses:
    """A code for each token `[vocab]`, and the execution characters that take several tokens, as their ids."""

    codes: Codes
    characters: tuple[tuple[int, ...], ...] = ()


def classify_vocabulary(texts: Sequence[str], encode: Callable[[str], list[int]] | None = None) -> TokenClasses:
    """The classes of a vocabulary. texts: each token, decoded. encode: for characters that are no token, such as √ in many."""
    rules = tomllib.loads(RULES.read_text(encoding="utf-8"))
    planning = {word.strip().lower() for words in rules["planning"].values() for word in words}
    execution = re.compile("|".join(f"(?:{pattern})" for pattern in rules["execution"].values()))

    def classify(text: str) -> int:
        token = text.strip().lower()
        if token in planning:
            return PLANNING
        if execution.fullmatch(token) and not re.fullmatch(rules["excluded"]["marks"], token):
            return EXECUTION
        if re.fullmatch(rules["variables"]["letter"], token):
            return WORD if token in rules["variables"]["words"] else LETTER
        return NONE

    symbols = sorted({symbol for symbol in execution.pattern if not symbol.isascii()})
    spelt = {tuple(encode(before + symbol)) for symbol in symbols for before in ("", " ")} if encode else ()
    several = tuple(sorted(ids for ids in spelt if len(ids) > 1 and all("\ufffd" in texts[token] for token in ids)))
    return TokenClasses(np.array([classify(text) for text in texts], dtype=np.int8), several)


def classify_text(vocabulary: TokenClasses, tokens: NDArray[Any]) -> Codes:
    """NONE, PLANNING or EXECUTION of each token of a text `[tokens]`: letters are variables beside execution tokens."""
    inside = (tokens >= 0) & (tokens < len(vocabulary.codes))  # ids that pad a model's vocabulary are NONE
    codes = np.where(inside, vocabulary.codes[np.where(inside, tokens, 0)], NONE)
    for ids in vocabulary.characters:
        places = np.arange(len(tokens) - len(ids) + 1)
        for place in places[np.all([tokens[places + i] == token for i, token in enumerate(ids)], axis=0)]:
            codes[place : place + len(ids)] = EXECUTION
    execution = np.pad(codes == EXECUTION, 1).astype(np.int8)
    beside = execution[:-2] + execution[2:]  # neighbours that are
    variables = beside >= np.where(codes == WORD, 2, 1)
    return np.where(codes >= LETTER, np.where(variables, EXECUTION, NONE), codes).astype(np.int8)


def count_classes(codes: Codes) -> NDArray[np.int64]:
    """How many tokens are planning, and how many execution: `[2]`."""
    return np.bincount(codes, minlength=3)[1:3]


def measure_peaks(sample: SampleTokens, score: str) -> dict[str, Any] | None:
    """Counts by class in the top 1 % of a base rollout by this score, and in all of it; `codes` is a column of the sample."""
    if not sample.has_peaks(score):
        return None
    codes = sample.columns["codes"]
    return {"in_set": count_classes(codes[sample.tops(score, (1,))[0]]), "in_base": count_classes(codes)}


def tabulate_planning(measured: pl.DataFrame) -> pl.DataFrame:
    """Tables 1, 5 and 6: shares by class among classifiable tokens in a set and in base rollouts, and their quotient.

    `measured` has a row per sample with `task, doc_id, run, set, score` and the counts `in_set`, `in_base` `[2]`. Counts are
    pooled over samples, and over tasks for `mean`. Equation (10): enrichment is share_set / share_base, its interval is over
    problems.
    """
    keys = ["run", "set", "score"]
    tasks = choose_averaged(measured["task"].unique(maintain_order=True).to_list())
    pooled = measured.filter(pl.col("task").is_in(tasks)).with_columns(pl.lit(MEAN).alias("pooled"))
    rows = []
    both = pl.concat([measured.with_columns(pl.col("task").alias("pooled")), pooled])
    for (task, *key), group in both.group_by(["pooled", *keys], maintain_order=True):
        counts = sum_samples(group, "in_set", "in_base")
        shares = [divide(each, each.sum(axis=1, keepdims=True)) for each in counts]
        enrichment = divide(*shares)
        for place, name in enumerate(CLASSES):
            row = {"task": task, **dict(zip(keys, key, strict=True)), "class": name}
            for end, (own, *_), share in zip(("set", "base"), counts, shares, strict=True):
                row |= {f"in_{end}": int(own[place]), f"of_{end}": int(own.sum())} | describe(share[:, place], f"share_{end}")
            rows.append(row | describe(enrichment[:, place], "enrichment", "low", "high"))
    return pl.DataFrame(rows, infer_schema_length=None)

"""Texts by a stated rule: the largest takeovers of a run, problems that it rescued or harmed, and a word in its contexts.

A context ('Sparse but Critical') is a whole word with the tokens beside it: `low` below 0.001 nats, where both models agree,
`high` from 0.1 nats. The word is the one that is most frequent in its rarer set. Contexts with the smallest digests of their
places are shown, whatever the files' order.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lm_eval_takeover.commands.show.rollout import mark_takeovers
from lm_eval_takeover.lab.analyze.inputs import CannotShow, Inputs
from lm_eval_takeover.lab.measures.choices import THRESHOLDS
from lm_eval_takeover.lab.measures.outcomes import find_changed
from lm_eval_takeover.lab.measures.tokens import SampleTokens, read_scored_samples
from lm_eval_takeover.runs.run_reader import Answered, RunReader

_LARGEST, _AROUND = 3, 24  # takeovers that are shown, and tokens on either side
_TRACED = ["token_id", "host_token_id", "chosen_from"]
SETS = ("low", "high")
LOW, HIGH = THRESHOLDS[0], THRESHOLDS[-1]  # nats
SHOWN, BESIDE = 5, 8  # contexts of each set; tokens on either side


def make_examples(inputs: Inputs) -> pl.DataFrame:
    """Of each guided run its largest scores at changed tokens, and a drawn problem that it alone solves, or the base alone."""
    verdicts, base = inputs.samples.filter("correct"), inputs.runs[inputs.base_name]
    solved = {name: set(verdicts.filter(run=name).select("task", "doc_id").iter_rows()) for name in inputs.runs}
    rows = []
    for name, run in inputs.guided().items():
        asked = {sample.name[:2] for sample in run.answered} & {sample.name[:2] for sample in base.answered}
        ours, theirs = solved[name] & asked, solved[inputs.base_name] & asked
        for rule, problems in (("rescued", ours - theirs), ("harmed", theirs - ours)):
            if problems:
                key = min(problems, key=lambda key: blake2b(f"0 {key}".encode()).digest())
                of_problem = (sample for sample in run.answered if sample.name[:2] == key)
                sample = next(sample for sample in of_problem if sample.correct == (rule == "rescued"))
                rows.append(_describe(inputs, run, sample) | {"run": name, "rule": rule})
        for score, (sample, at) in heapq.nlargest(_LARGEST, _list_largest(inputs, run), key=lambda facts: facts[0]):
            facts = {"run": name, "rule": "largest", "position": at, "score": score}
            rows.append(_describe(inputs, run, sample, at) | facts)
    if not rows:
        raise CannotShow("no takeover changed a token, and no problem was rescued or harmed")
    columns = {"position": pl.Int64, "score": pl.Float64, "problem": pl.String}
    return pl.DataFrame(rows, schema_overrides=columns, infer_schema_length=None)


def _list_largest(inputs: Inputs, run: RunReader) -> Iterator[tuple[float, tuple[Answered, int]]]:
    """Of each text its largest score at a takeover that changed the token."""
    answered = {sample.name: sample for sample in run.answered}
    for _, sample in inputs.read_traces(run):
        score = sample.columns["score"]
        scores = np.where(find_changed(sample) & np.isfinite(score), score, -np.inf)
        if (best := scores.max(initial=-np.inf)) > -np.inf:
            yield float(best), (answered[sample.name], int(scores.argmax()))


def _describe(inputs: Inputs, run: RunReader, sample: Answered, at: int | None = None) -> dict[str, Any]:
    """The text with its takeovers marked as `show` does; beside a position, if there is one."""
    ((_, table),) = run.read_traces(_TRACED, [sample])
    if at is not None:
        table = table.slice(start := max(0, at - _AROUND), at + 1 + _AROUND - start)
    text = mark_takeovers(lambda ids: "".join(inputs.pieces.split(ids)), table, run.donor).plain
    facts = {"position": None, "score": None, "problem": run.find_prompt(sample)["problem"], "text": text}
    return dict(zip(("task", "doc_id", "sample"), sample.name, strict=True)) | facts


def make_contexts(inputs: Inputs) -> pl.DataFrame:
    """One word at low and at high scores, by js where it is scored."""
    score = "js" if "js" in inputs.scores else inputs.scores[0]
    read = partial(read_scored_samples, inputs.score_files, [score])
    words = Words.read(inputs.pieces.list_names())
    counts = count_words(read(), words, score)
    place = int(counts.min(axis=0).argmax()) if words.names else -1
    if place < 0 or not counts[:, place].any():
        raise CannotShow(f"no token is a word, below {LOW:g} or from {HIGH:g} nats of {score}")
    rows = draw_contexts(read(), words, place, score)
    of_sets = dict(zip(SETS, counts[:, place].tolist(), strict=True))
    for row in rows:
        texts = {side: "".join(inputs.pieces.split(row[side].tolist())) for side in ("before", "after")}
        row |= {"word": words.names[place], "score": score, "occurrences": of_sets[row["set"]], **texts}
        row["token"] = inputs.pieces.name(row["token"])
    return pl.DataFrame(rows)


@dataclass(frozen=True)
class Words:
    """Of each token of a vocabulary and of one beyond it: its word or -1, and whether it begins and ends inside of a word."""

    names: list[str]
    word: NDArray[np.intp]
    begins: NDArray[np.bool_]
    ends: NDArray[np.bool_]

    @classmethod
    def read(cls, pieces: Sequence[str]) -> "Words":
        """`pieces` is the text of each token."""
        texts = [piece.strip().lower() for piece in pieces]
        names = sorted({text for text in texts if len(text) > 1 and text.isalpha()})
        places = {name: place for place, name in enumerate(names)}
        begins, ends = ([piece[at : at + 1 or None].isalnum() for piece in (*pieces, "")] for at in (0, -1))
        return cls(names, np.array([places.get(text, -1) for text in (*texts, "")]), np.array(begins), np.array(ends))

    def find(self, tokens: NDArray[Any]) -> NDArray[np.intp]:
        """The word of each token `[tokens]`, -1 where it is none or a part of a longer one."""
        clipped = np.minimum(tokens, len(self.word) - 1)
        indices: NDArray[np.intp] = self.word[clipped]
        joined = self.ends[clipped[:-1]] & self.begins[clipped[1:]]
        indices[1:][joined] = indices[:-1][joined] = -1
        return indices


def split(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which positions are low, and which high `[2, tokens]`."""
    return np.stack([values < LOW, values >= HIGH])


def count_words(samples: Iterable[SampleTokens], words: Words, score: str) -> NDArray[np.int64]:
    """How often each word is at positions of low and of high scores `[2, words]`."""
    counts = np.zeros((len(SETS), len(words.names)), dtype=np.int64)
    for sample in samples:
        indices = words.find(sample.columns["token_id"])
        for place, inside in enumerate(split(sample.score(score))):
            counts[place] += np.bincount(indices[inside & (indices >= 0)], minlength=counts.shape[1])
    return counts


def draw_contexts(samples: Iterable[SampleTokens], words: Words, word: int, score: str) -> list[dict[str, Any]]:
    """Rows `set, task, doc_id, sample, position, value, token, before, after`; the last three are ids."""

    def list_all() -> Iterator[tuple[bytes, dict[str, Any]]]:
        for sample in samples:
            ids, values = sample.columns["token_id"], sample.score(score)
            places = words.find(ids) == word
            for name, inside in zip(SETS, split(values), strict=True):
                for at in np.flatnonzero(places & inside).tolist():
                    key = blake2b(f"0 {sample.name} {at}".encode(), digest_size=8).digest()
                    named = {"set": name, **dict(zip(("task", "doc_id", "sample"), sample.name, strict=True))}
                    beside = {"before": ids[max(0, at - BESIDE) : at], "after": ids[at + 1 : at + 1 + BESIDE]}
                    yield key, {**named, "position": at, "value": float(values[at]), "token": int(ids[at]), **beside}

    best: dict[str, list[tuple[bytes, int, dict[str, Any]]]] = {name: [] for name in SETS}
    for number, (key, row) in enumerate(list_all()):
        best[row["set"]] = heapq.nsmallest(SHOWN, [*best[row["set"]], (key, number, row)])
    return [row for name in SETS for _, _, row in best[name]]

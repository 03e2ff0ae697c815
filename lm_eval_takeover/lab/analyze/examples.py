"""Texts by a stated rule: the largest takeovers of a run, problems that it rescued or harmed, and a word in its contexts."""

import heapq
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl

from lm_eval_takeover.commands.show.rollout import mark_takeovers
from lm_eval_takeover.lab.analysis.contexts import HIGH, LOW, SETS, Words, count_words, draw_contexts
from lm_eval_takeover.lab.analysis.takeovers import find_changed
from lm_eval_takeover.lab.analysis.tokens import read_scored_samples
from lm_eval_takeover.lab.analyze.inputs import CannotShow, Inputs
from lm_eval_takeover.runs.run_reader import Answered, RunReader

_LARGEST, _BESIDE = 3, 24  # takeovers that are shown, and tokens on either side
_SHOWN = ["token_id", "host_token_id", "chosen_from"]


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
                key = min(problems, key=lambda key: blake2b(f"{inputs.seed} {key}".encode()).digest())
                samples = sorted((sample for sample in run.answered if sample.name[:2] == key), key=lambda sample: sample.name)
                sample = next(sample for sample in samples if sample.correct == (rule == "rescued"))
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
    ((_, table),) = run.read_traces(_SHOWN, [sample])
    if at is not None:
        table = table.slice(start := max(0, at - _BESIDE), at + 1 + _BESIDE - start)
    text = mark_takeovers(lambda ids: "".join(inputs.pieces.split(ids)), table, run.donor).plain
    facts = {"position": None, "score": None, "problem": run.find_prompt(sample)["problem"], "text": text}
    return dict(zip(("task", "doc_id", "sample"), sample.name, strict=True)) | facts


def make_contexts(inputs: Inputs) -> pl.DataFrame:
    """One word at low and at high scores, by js where it is scored."""
    score = "js" if "js" in inputs.scores else inputs.scores[0]
    read = partial(read_scored_samples, inputs.score_files, [score])
    words = Words.read(inputs.pieces.list_names())
    counts = count_words(read(), words, score)
    if inputs.word is None:
        place = int(counts.min(axis=0).argmax()) if words.names else -1
    else:
        place = {name: at for at, name in enumerate(words.names)}.get(inputs.word.lower(), -1)
    if place < 0 or not counts[:, place].any():
        raise CannotShow(f"no token is the word '{inputs.word or 'any'}', below {LOW:g} or from {HIGH:g} nats of {score}")
    rows = draw_contexts(read(), words, place, score, inputs.seed)
    of_sets = dict(zip(SETS, counts[:, place].tolist(), strict=True))
    for row in rows:
        texts = {side: "".join(inputs.pieces.split(row[side].tolist())) for side in ("before", "after")}
        row |= {"word": words.names[place], "score": score, "occurrences": of_sets[row["set"]], **texts}
        row["token"] = inputs.pieces.name(row["token"])
    return pl.DataFrame(rows)

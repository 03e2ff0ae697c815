"""Makes and writes every analysis that the given runs allow."""

import heapq
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tqdm import tqdm

from lm_eval_takeover import __version__
from lm_eval_takeover.answers.judging import count_cores
from lm_eval_takeover.commands._output import holding, replacing, write_json, write_study, writing
from lm_eval_takeover.commands.show.rollout import mark_takeovers
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.lab.analyze.inputs import CannotShow, Inputs
from lm_eval_takeover.lab.extra import draw_svg
from lm_eval_takeover.lab.measures import outcomes
from lm_eval_takeover.lab.measures.catalogue import COLUMNS, SCORED, measure_texts
from lm_eval_takeover.lab.measures.figures import DRAWN, SIZE, draw
from lm_eval_takeover.lab.measures.outcomes import find_changed
from lm_eval_takeover.lab.measures.planning import classify_text, count_classes, tabulate_planning
from lm_eval_takeover.lab.measures.pooling import make_frame
from lm_eval_takeover.results.problems import ACC
from lm_eval_takeover.runs.parquet import split_parts
from lm_eval_takeover.runs.run_reader import Answered, RunReader, read_run_folders
from lm_eval_takeover.storage.files import write_text

INDEX = "analysis.json"
_EMPTY = {  # why an analysis may have no rows
    "flips": "no other run has problems of the base run; give a second run of the same tasks",
    "ranks": "no takeover is known whose token is not the host's own (`random` and `early` do not ask the host)",
}


def analyze(
    run_dirs: Sequence[Path], out: Path, only: str = "", near: float = 0.1, rollouts: str = "base", tokenizer: str | None = None
) -> int:
    """Returns the exit status. Raises ArgumentError where nothing can be shown, or not what `--only` names."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in COLUMNS:
            raise ArgumentError(f"--only '{name}' is not an analysis; {nearest(name, COLUMNS)}")
    inputs = Inputs.name(read_run_folders(run_dirs), tokenizer, rollouts)
    tables, missing = make_tables(inputs, names or list(COLUMNS), near)
    if missing and (names or not tables):
        name, reason = next(iter(missing.items()))
        raise ArgumentError(f"{name} cannot be shown: {reason}")
    described = [
        {"name": name, "path": os.path.relpath(run.folder, out), "policy": run.policy, "tasks": run.tasks}
        for name, run in inputs.runs.items()
    ]
    index: dict[str, Any] = {"version": __version__, "runs": described, "analyses": list(tables), "cannot_show": missing}
    index |= {"near": near, "rollouts": rollouts}
    with holding("out", out, "analysis.lock", wait=True), writing("out", out), replacing(out, INDEX) as folder:
        for name, table in tables.items():
            write_analysis(folder, name, table)
        write_text(folder / INDEX, write_json(index))
    for reason in dict.fromkeys(missing.values()):
        together = ", ".join(name for name, its_own in missing.items() if its_own == reason)
        print(f"{together} cannot be shown: {for_terminal(reason)}", file=sys.stderr)
    tasks = {task for run in inputs.runs.values() for task in run.tasks}
    for line in [*inputs.notes, *(f"one task: the rows `mean` are those of {task}" for task in tasks if len(tasks) == 1)]:
        print(for_terminal(line), file=sys.stderr)
    print(f"{', '.join(tables)} -> {out}")
    return 0


def make_tables(inputs: Inputs, names: Sequence[str], near: float) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The tables by name, in the order of the catalogue, and why others cannot be shown."""
    tables: dict[str, pl.DataFrame] = {}
    missing: dict[str, str] = {}
    scored = [name for name in SCORED if name in names or (name, "signals" in names) == ("failure", True)]
    measured = cache(lambda: measure_rollouts(inputs, scored))

    def read(name: str) -> pl.DataFrame:
        if name not in measured():
            raise CannotShow("all scores are 0")
        return measured()[name]

    makers: dict[str, Callable[[], pl.DataFrame]] = {
        "planning": lambda: make_planning(inputs, partial(read, "planning")),
        "failure": lambda: SCORED["failure"].tabulate(_add_verdicts(inputs, read("failure"))),
        "signals": lambda: _add_verdicts(inputs, read("failure")).rename({"signal_value": "value"}),  # Figure 4
        "examples": lambda: make_examples(inputs),
        "budget": lambda: outcomes.tabulate_budget(inputs.results),
        "rates": lambda: outcomes.tabulate_rates(inputs.samples),
        "flips": lambda: outcomes.tabulate_flips(inputs.verdicts, inputs.base_name),
        "cross": lambda: make_cross(inputs, near),
        "ranks": lambda: make_ranks(inputs),
    }
    for name in (name for name in COLUMNS if name in names):
        try:
            table = makers[name]() if name in makers else SCORED[name].tabulate(read(name))
            if table.is_empty() and name in _EMPTY:
                raise CannotShow(_EMPTY[name])
            tables[name] = table.select(COLUMNS[name])
        except CannotShow as reason:
            missing[name] = str(reason)
    return tables, missing


def measure_rollouts(inputs: Inputs, names: Sequence[str]) -> dict[str, pl.DataFrame]:
    """Measure these analyses on the scored samples of the base run, or of the guide's. Shows progress."""
    codes, scores = inputs.codes if "planning" in names else None, inputs.scores.scores
    groups = list(split_parts(inputs.scored.stored_samples(), lambda sample: sample.stored.tokens))

    def measure(group: Sequence[Answered]) -> dict[str, pl.DataFrame]:
        return measure_texts(names, scores, inputs.read_scores(group, codes))

    with ThreadPoolExecutor(count_cores()) as pool:  # numpy and zstd let other threads run
        measured = list(tqdm(pool.map(measure, groups), "Reading scores", len(groups), unit="group"))
    parts = {name: [of_group[name] for of_group in measured if name in of_group] for name in names}
    return {name: pl.concat(own).sort("task", maintain_order=True) for name, own in parts.items() if own}


def _add_verdicts(inputs: Inputs, measured: pl.DataFrame) -> pl.DataFrame:
    verdicts = inputs.verdicts.filter(pl.col("run") == inputs.scored_name).select("task", "doc_id", "sample", "correct")
    return measured.join(verdicts, on=["task", "doc_id", "sample"], maintain_order="left")


def make_planning(inputs: Inputs, read_peaks: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """Peaks of the scored base run, and takeovers of guided runs against the tokens of the base run; either alone will do."""
    columns = ["task", "doc_id", "run", "set", "score", "in_set", "in_base"]
    parts, without = [], None
    try:
        peaks = read_peaks().with_columns(run=pl.lit(inputs.scored_name), set=pl.lit("peaks"))
        parts.append(peaks.select(columns))
    except CannotShow as reason:
        without = reason
    try:
        parts.append(make_frame(list(_count_takeovers(inputs))).select(columns))
    except CannotShow as reason:
        if without:
            raise without from reason
        if any(run.policy not in ("base", "guide") for run in inputs.runs.values()):
            inputs.notes.append(f"planning at takeovers cannot be shown: {reason}")
    return tabulate_planning(pl.concat(parts))


def _count_takeovers(inputs: Inputs) -> Iterator[dict[str, Any]]:
    """Classes of takeovers, and of the tokens of the base run, as rows for `tabulate_planning`."""
    runs, nothing = inputs.guided(), np.zeros(2, dtype=np.int64)
    in_base = [
        (task, sample.name[1], count_classes(classify_text(inputs.codes, sample.columns["token_id"])))
        for task, sample in inputs.read_traces(inputs.runs[inputs.base_name])
    ]
    for name, run in runs.items():
        inputs.check_tokenizer(name)
        facts = {"run": name, "set": "takeovers", "score": run.takeover.get("score") or run.policy}
        for task, sample in inputs.read_traces(run):
            codes = classify_text(inputs.codes, sample.columns["token_id"])[sample.columns["takeover"]]
            yield {"task": task, "doc_id": sample.name[1], **facts, "in_set": count_classes(codes), "in_base": nothing}
        for task, doc_id, counts in in_base:
            if task in run.tasks:
                yield {"task": task, "doc_id": doc_id, **facts, "in_set": nothing, "in_base": counts}


def make_ranks(inputs: Inputs) -> pl.DataFrame:
    """Of guided runs whose traces say what the host would have drawn."""
    rows = [
        {"task": task, "run": name, "doc_id": sample.name[1], **outcomes.measure_ranks(sample)}
        for name, run in inputs.guided().items()
        for task, sample in inputs.read_traces(run)
    ]
    return outcomes.tabulate_ranks(make_frame(rows).sort("task", maintain_order=True))


def make_cross(inputs: Inputs, near: float) -> pl.DataFrame:
    """Cross-sampling of runs with score=js, against the runs of each model alone."""
    runs = inputs.guided("js")
    rows = [
        {"task": task, "run": name, "direction": run.takeover.get("direction"), **outcomes.measure_cross(sample, near)}
        for name, run in runs.items()
        for task, sample in inputs.read_traces(run)
    ]
    acc: dict[tuple[str | None, str], float] = {
        (name, task): result.means[ACC] for name, run in inputs.results.items() for task, result in run.tasks.items()
    }
    accuracies = []
    for name, run in runs.items():
        told = run.takeover
        alone = {
            one.policy: each for each, one in inputs.runs.items() if one.takeover.get(one.policy, 0) == told.get(one.policy)
        }
        host, donor = alone.get(run.host), alone.get(run.donor)
        for task in run.tasks:
            values = {"acc_host": acc.get((host, task)), "acc_donor": acc.get((donor, task))}
            accuracies.append({"task": task, "run": name, "acc": acc.get((name, task)), **values})
    schema = {"task": pl.String, "run": pl.String} | dict.fromkeys(("acc", "acc_host", "acc_donor"), pl.Float64)
    return outcomes.tabulate_cross(make_frame(rows), pl.DataFrame(accuracies, schema=schema), near)


def write_analysis(folder: Path, name: str, table: pl.DataFrame) -> None:
    """Write the files of a table, of numbers with a figure."""
    rows = table.with_columns(pl.selectors.float().fill_nan(None))
    picture = draw_svg(partial(draw, name, rows), SIZE) if name in DRAWN else None
    write_study(folder, name, rows.columns, rows.to_dicts(), picture)


_LARGEST, _AROUND = 3, 24  # takeovers that are shown, and tokens on either side
_TRACED = ["token_id", "host_token_id", "chosen_from"]


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
    ((_, trace),) = run.read_traces(_TRACED, [sample])
    if at is not None:
        trace = {name: values[max(0, at - _AROUND) : at + 1 + _AROUND] for name, values in trace.items()}
    text = mark_takeovers(lambda ids: "".join(inputs.pieces.split(ids)), trace, run.donor).plain
    facts = {"position": None, "score": None, "problem": run.find_prompt(sample)["problem"], "text": text}
    return dict(zip(("task", "doc_id", "sample"), sample.name, strict=True)) | facts

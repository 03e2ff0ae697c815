"""Makes and writes every analysis that the given runs allow."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tqdm import tqdm

from lm_eval_takeover import __version__
from lm_eval_takeover.commands._output import write_csv, write_json, writing
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.lab.analyze.examples import make_contexts, make_examples
from lm_eval_takeover.lab.analyze.inputs import CannotShow, Inputs, split_pairs
from lm_eval_takeover.lab.extra import draw_svg
from lm_eval_takeover.lab.measures import outcomes
from lm_eval_takeover.lab.measures.catalogue import COLUMNS, SCORED, Measuring, measure_files
from lm_eval_takeover.lab.measures.figures import DRAWN, SIZE, draw
from lm_eval_takeover.lab.measures.planning import TokenClasses, classify_text, count_classes, tabulate_planning
from lm_eval_takeover.lab.measures.pooling import make_frame
from lm_eval_takeover.runs.parquet import Name
from lm_eval_takeover.runs.run_reader import RunReader
from lm_eval_takeover.storage.whole_files import write_text

INDEX = "analysis.json"
GUIDES = ("guides", "checkpoints")
_NOTHING = "all scores are 0, or the scores files hold none of the run's samples"


def analyze(options: argparse.Namespace) -> int:
    """Returns the exit status. Raises ArgumentError where nothing can be shown, or not what `--only` names."""
    names = [name.strip() for name in options.only.split(",") if name.strip()]
    for name in names:
        if name not in COLUMNS:
            raise ArgumentError(f"--only '{name}' is not an analysis; {nearest(name, COLUMNS)}")
    rules = TokenClasses.read(options.token_classes) if options.token_classes else None
    facts = {"rollouts": options.rollouts, "rules": rules, "word": options.word, "seed": options.seed}
    split = split_pairs(options.run_dirs, options.rollouts)
    pairs = {pair: Inputs.name(runs, options.tokenizer, **facts) for pair, runs in split.items()}
    names = names or list(COLUMNS)
    if len(pairs) > 1:
        _analyze_pairs(options, pairs, names)
    else:
        _analyze_pair(options, "", pairs[""], names)
    return 0


def _analyze_pair(options: argparse.Namespace, pair: str, inputs: Inputs, names: Sequence[str]) -> dict[str, pl.DataFrame]:
    """Write these analyses of one pair, those of a named one into its folder; returns the ones that can be shown."""
    tables, missing = make_tables(inputs, names, options.near)
    if missing and not pair and (options.only or not tables):
        name, reason = next(iter(missing.items()))
        raise ArgumentError(f"{name} cannot be shown: {reason}")
    for name, table in tables.items():
        write_analysis(options.out / pair, name, table)
    _write_index(options, options.out / pair, inputs.runs, list(tables), missing)
    of_pair = f"{pair}: " if pair else ""
    for reason in dict.fromkeys(missing.values()):
        together = ", ".join(name for name, its_own in missing.items() if its_own == reason)
        print(f"{of_pair}{together} cannot be shown: {for_terminal(reason)}", file=sys.stderr)
    tasks = {task for run in inputs.runs.values() for task in run.tasks}
    for line in [*inputs.notes, *(f"one task: the rows `mean` are those of {task}" for task in tasks if len(tasks) == 1)]:
        print(f"{of_pair}{for_terminal(line)}", file=sys.stderr)
    print(f"{', '.join(tables) or 'nothing'} -> {options.out / pair}")
    return tables


def _analyze_pairs(options: argparse.Namespace, pairs: Mapping[str, Inputs], names: Sequence[str]) -> None:
    """Each pair in a folder of its own; beside each other their tables, with a column `pair`, and their guides."""
    by_analysis: dict[str, list[pl.DataFrame]] = {name: [] for name in names if name not in GUIDES}
    for pair, inputs in pairs.items() if by_analysis else ():
        for name, table in _analyze_pair(options, pair, inputs, list(by_analysis)).items():
            by_analysis[name].append(table.select(pl.lit(pair).alias("pair"), pl.all()))
    runs = {f"{pair}/{name}": run for pair, inputs in pairs.items() for name, run in inputs.runs.items()}
    guides, missing = make_tables(Inputs(runs, pairs=pairs), [name for name in GUIDES if name in names], options.near)
    tables = {name: pl.concat(those, how="vertical_relaxed") for name, those in by_analysis.items() if those} | guides
    if not tables:
        raise ArgumentError(f"{options.only} cannot be shown: {next(iter(missing.values()), 'the pairs lack its runs')}")
    for name, table in tables.items():
        write_analysis(options.out, name, table)
    _write_index(options, options.out, runs, list(guides), missing)
    texts = {pair: {(sample.name, sample.stored.text) for sample in inputs.scored.answered} for pair, inputs in pairs.items()}
    for pair, other in combinations(texts, 2):
        if texts[pair] != texts[other]:
            counts = f"{len(texts[pair] & texts[other])} texts of {len(texts[pair])} and {len(texts[other])}"
            print(f"{pair} and {other} share {counts}; iou is measured on these alone", file=sys.stderr)
    print(f"{', '.join(tables)} of {', '.join(pairs)} -> {options.out}")


def make_tables(inputs: Inputs, names: Sequence[str], near: float) -> tuple[dict[str, pl.DataFrame], dict[str, str]]:
    """The tables by name, in the order of the catalogue, and why others cannot be shown."""
    tables: dict[str, pl.DataFrame] = {}
    missing: dict[str, str] = {}
    scored = [name for name in SCORED if name in names or (name, "signals" in names) == ("failure", True)]
    scored = [name for name in scored if name != "guides"]
    measured = cache(lambda: measure_rollouts(inputs, scored))

    def read(name: str) -> pl.DataFrame:
        if name not in measured():
            raise CannotShow(_NOTHING)
        return measured()[name]

    makers: dict[str, Callable[[], pl.DataFrame]] = {
        "planning": lambda: make_planning(inputs, partial(read, "planning")),
        "failure": lambda: SCORED["failure"].tabulate(_add_verdicts(inputs, read("failure"))),
        "signals": lambda: _add_verdicts(inputs, read("failure")).rename({"signal_value": "value"}),  # Figure 4
        "contexts": lambda: make_contexts(inputs),
        "guides": lambda: make_guides(inputs.guides, steps=False),
        "checkpoints": lambda: make_guides(inputs.guides, steps=True),
        "examples": lambda: make_examples(inputs),
        "budget": lambda: outcomes.tabulate_budget(inputs.samples),
        "rates": lambda: outcomes.tabulate_rates(inputs.samples),
        "flips": lambda: make_flips(inputs),
        "cross": lambda: make_cross(inputs, near),
        "ranks": lambda: make_ranks(inputs),
    }
    for name in (name for name in COLUMNS if name in names):
        try:
            table = makers[name]() if name in makers else SCORED[name].tabulate(read(name))
            tables[name] = table.select(COLUMNS[name])
        except CannotShow as reason:
            missing[name] = str(reason)
    return tables, missing


def measure_rollouts(inputs: Inputs, names: Sequence[str], files: list[Path] | None = None) -> dict[str, pl.DataFrame]:
    """Measure these analyses on the scored samples of the base run, or of the guide's. Shows progress."""
    files = files or inputs.score_files
    places: dict[Name, list[Name]] = {}
    for sample in inputs.scored.answered:
        places.setdefault(sample.stored_name, []).append(sample.name)
    codes = inputs.codes if "planning" in names else None
    measuring = Measuring(names, inputs.scores, places, codes)
    frames: dict[str, list[pl.DataFrame]] = {name: [] for name in names}
    tokens = sum(sample.stored.tokens for sample in inputs.scored.stored_samples())
    for measured in tqdm(measure_files(measuring, files, tokens), "Reading scores", len(files), unit="file"):
        for name, frame in measured.items():
            frames[name].append(frame)
    return {name: pl.concat(parts).sort("task", maintain_order=True) for name, parts in frames.items() if parts}


def _add_verdicts(inputs: Inputs, measured: pl.DataFrame) -> pl.DataFrame:
    verdicts = inputs.samples.filter(pl.col("run") == inputs.scored_name).select("task", "doc_id", "sample", "correct")
    return measured.join(verdicts, on=["task", "doc_id", "sample"], maintain_order="left")


def make_guides(guides: Sequence[tuple[Inputs, str, int | None, list[Path]]], *, steps: bool) -> pl.DataFrame:
    """Guides side by side, without a step or with one, in its order: whose scores, its name, its step, its files."""
    chosen = sorted((guide for guide in guides if (guide[2] is None) != steps), key=lambda guide: (guide[2] or 0, guide[1]))
    if len(chosen) < 2:
        way_out = f"lm-eval-takeover score {guides[0][0].scored.folder} --guide … --name …"
        raise CannotShow(f"it needs scores by a second guide, or of two checkpoints; run: {way_out}")
    measured = [(measure_rollouts(inputs, ["guides"], files), name) for inputs, name, _, files in chosen]
    frames = [of["guides"].with_columns(guide=pl.lit(name)) for of, name in measured if of]
    if not frames:
        raise CannotShow(_NOTHING)
    numbers = {name: step for _, name, step, _ in chosen}
    table = SCORED["guides"].tabulate(pl.concat(frames))
    return table.with_columns(step=pl.col("guide").replace_strict(numbers, return_dtype=pl.Int64))


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


def make_flips(inputs: Inputs) -> pl.DataFrame:
    """Rescued and harmed problems of every other run against the base run."""
    table = outcomes.tabulate_flips(inputs.samples, inputs.base_name)
    if table.is_empty():
        raise CannotShow("no other run has problems of the base run; give a second run of the same tasks")
    return table


def make_ranks(inputs: Inputs) -> pl.DataFrame:
    """Of guided runs whose traces say what the host would have drawn."""
    rows = [
        {"task": task, "run": name, "doc_id": sample.name[1], **outcomes.measure_ranks(sample)}
        for name, run in inputs.guided().items()
        for task, sample in inputs.read_traces(run)
    ]
    table = outcomes.tabulate_ranks(make_frame(rows).sort("task", maintain_order=True))
    if table.is_empty():
        raise CannotShow("no takeover is known whose token is not the host's own (`random` and `early` do not ask the host)")
    return table


def make_cross(inputs: Inputs, near: float) -> pl.DataFrame:
    """Cross-sampling of runs with score=js, against the runs of each model alone."""
    runs = inputs.guided("js")
    rows = [
        {"task": task, "run": name, "direction": run.takeover.get("direction"), **outcomes.measure_cross(sample, near)}
        for name, run in runs.items()
        for task, sample in inputs.read_traces(run)
    ]
    budget = outcomes.tabulate_budget(inputs.samples).select("run", "task", "acc")
    acc = {(run, task): value for run, task, value in budget.iter_rows()}
    accuracies = []
    for name, run in runs.items():
        models = {role: run.takeover.get(role) for role in ("base", "guide")}
        alone = {
            one.policy: each for each, one in inputs.runs.items() if one.takeover.get(one.policy) == models.get(one.policy, 0)
        }
        host, donor = alone.get(run.host), alone.get(run.donor)
        for task in run.tasks:
            values = {"acc_host": acc.get((host, task)), "acc_donor": acc.get((donor, task))}
            accuracies.append({"task": task, "run": name, "acc": acc.get((name, task)), **values})
    schema = {"task": pl.String, "run": pl.String} | dict.fromkeys(("acc", "acc_host", "acc_donor"), pl.Float64)
    return outcomes.tabulate_cross(make_frame(rows), pl.DataFrame(accuracies, schema=schema), near)


def write_analysis(folder: Path, name: str, table: pl.DataFrame) -> None:
    """`NAME.csv`, `NAME.json` and, of numbers, `NAME.svg`. Raises ArgumentError where they cannot be written."""
    floats = [column for column, kind in table.schema.items() if kind.is_float()]
    rows = table.with_columns(pl.col(floats).fill_nan(None))
    picture = draw_svg(partial(draw, name, rows), SIZE) if name in DRAWN and "pair" not in rows.columns else None
    with writing("out", folder):
        write_text(folder / f"{name}.csv", write_csv(rows.columns, rows.to_dicts()))
        write_text(folder / f"{name}.json", write_json(rows.to_dicts()))
        if picture is not None:
            write_text(folder / f"{name}.svg", picture)


def _write_index(
    options: argparse.Namespace, out: Path, runs: Mapping[str, RunReader], names: Sequence[str], missing: Mapping[str, str]
) -> None:
    """`analysis.json`: which runs, by paths relative to the folder, and which analyses."""
    described = [
        {"name": name, "path": os.path.relpath(run.folder, out), "policy": run.policy, "tasks": run.tasks}
        for name, run in runs.items()
    ]
    content = {"version": __version__, "runs": described, "analyses": names, "cannot_show": missing}
    with writing("out", out):
        write_text(out / INDEX, write_json(content | {"near": options.near, "rollouts": options.rollouts}))

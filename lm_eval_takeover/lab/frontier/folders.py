"""Folders of `compare` as one frontier: of other methods, seeds or pairs.

They must agree in problems, settings of tasks, verifiers and calibration prompts, and all rows of a pair in their seeds. Rows of
several seeds become one row, the mean over them problem by problem; the spread between seeds stands beside it.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_takeover.calibration.files import packaged_calibrations, read_calibration
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.frontier.output import try_to_draw, write_frontier
from lm_eval_takeover.lab.frontier.study import Frontier, describe_frontier, measure_points
from lm_eval_takeover.results.files import Counts, Run, TaskResult
from lm_eval_takeover.results.kept_rows import ComparedRow, read_kept_rows
from lm_eval_takeover.results.settings import list_differences
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.files import make_folder

_OF_MODELS = ("chat_template", "end_tokens", "system_instruction", "thinking")  # and may differ


@dataclass(frozen=True)
class ComparedFolder:
    """A folder that `compare` wrote. `pair` names base and guide; `prompts` are digests of the problems of calibrations."""

    folder: Path
    rows: Mapping[ComparedRow, Sequence[Run]]
    pair: str
    prompts: frozenset[str]

    @classmethod
    def read(cls, folder: Path) -> "ComparedFolder":
        """Raises ResultsError, ArgumentError."""
        rows = read_kept_rows(folder)
        runs = list(chain(*rows.values()))
        pair = [{str(run.settings[role]) for run in runs if run.settings.get(role)} for role in ("base", "guide")]
        names = {name for run in runs if (name := run.takeover.get("calibration"))}
        files = [packaged_calibrations().get(name, folder / f"{name}.json") for name in names]
        prompts = {digest_of(read_calibration(path).prompts["problems"]) for path in files if path.exists()}
        return cls(folder, rows, " + ".join(min(each, default="?") for each in pair), frozenset(prompts))

    @property
    def tasks(self) -> dict[str, TaskResult]:
        return {task: result for run in chain(*self.rows.values()) for task, result in run.tasks.items()}


def make_frontier(options: argparse.Namespace) -> int:
    """Write and print the frontier of all folders; returns the exit status. Raises ArgumentError for what differs."""
    comparisons, whole = [ComparedFolder.read(folder) for folder in options.runs], Frontier([], [])
    for other in comparisons[1:]:
        if differences := list(_list_differences(comparisons[0], other)):
            folders = f"'{comparisons[0].folder}' and '{other.folder}'"
            raise ArgumentError(f"{folders} differ in {'; '.join(differences)}; give folders that agree")
    pairs = list(dict.fromkeys(comparison.pair for comparison in comparisons))
    if options.effects is not None and len(pairs) > 1:
        raise ArgumentError(f"--effects '{options.effects}' is of one pair, and the folders are of {len(pairs)}")
    for pair in pairs:
        frontier = _merge_pair([comparison for comparison in comparisons if comparison.pair == pair], options.effects)
        named = {}
        if len(pairs) > 1:
            short = " + ".join(name.partition("@")[0].rstrip("/").rpartition("/")[2] for name in pair.split(" + "))
            named = {"pair": pair if short in {line["pair"] for line in whole.lines} else short}
            print(named["pair"])
        whole.lines.extend(line | named for line in frontier.lines)
        whole.all_areas.extend(area | named for area in frontier.all_areas)
        print(write_frontier(frontier, options.cost, options.format))
    make_folder(options.out)
    whole.write(options.out)
    try_to_draw(whole.averages, options.cost, options.out / "frontier.svg", frontier.host)
    print(f"{len(comparisons)} comparison{'s' if len(comparisons) > 1 else ''} -> {options.out}")
    return 0


def _list_differences(ours: ComparedFolder, theirs: ComparedFolder) -> Sequence[str]:
    """Differences that keep two comparisons out of one figure."""
    if ours.tasks.keys() != theirs.tasks.keys():
        return [f"tasks: {', '.join(ours.tasks)} -> {', '.join(theirs.tasks)}"]
    differences = ["calibration prompts"] if ours.prompts and theirs.prompts and ours.prompts != theirs.prompts else []
    for task, first, second in ((task, result, theirs.tasks[task]) for task, result in ours.tasks.items()):
        ids = [set(result.problems.ids) if result.problems else set() for result in (first, second)]
        differences += [f"problems of {task}"] if ids[0] != ids[1] or not ids[0] else []
        differences += [f"verifier: {first.verifier} -> {second.verifier}"] if first.verifier != second.verifier else []
        differences += list_differences(first.settings, second.settings, (*_OF_MODELS, "limit", "verifier"))
    return list(dict.fromkeys(differences))


def _merge_pair(comparisons: Sequence[ComparedFolder], effects: Path | None) -> Frontier:
    """The frontier of one pair, with the number of seeds of each row and the spread between them."""
    by_label: dict[str, dict[Any, tuple[ComparedRow, Sequence[Run]]]] = {}
    for comparison in comparisons:
        for row, runs in comparison.rows.items():
            first_runs = by_label.setdefault(row.label, {}).setdefault(runs[0].seed, (row, runs))[1]
            if _digest_texts(first_runs) != _digest_texts(runs):
                print(f"{row.label} of '{comparison.folder}' has other texts than before; those before count", file=sys.stderr)
    own_seeds = (item for item in by_label.items() if all(runs[0].takeover for _, runs in item[1].values()))  # not lm-eval's
    seeds = {label: sorted(of_seed) for label, of_seed in own_seeds if None not in of_seed}
    for label, own in seeds.items():
        if own != (first := next(iter(seeds.values()))):
            raise ArgumentError(f"rows differ in seeds: {next(iter(seeds))} has {first}, {label} has {own}")
    rows = {label: list(of_seed.values()) for label, of_seed in by_label.items()}
    means = {each[0][0]: [_average([r for _, r in each])] if len(each) > 1 else each[0][1] for each in rows.values()}
    frontier = describe_frontier(means, effects)
    single = {label: [measure_points({r: runs})[0][0].summaries for r, runs in each] for label, each in rows.items()}
    for line in frontier.lines:
        summaries = [of_seed[line["task"]] for of_seed in single.get(line["row"], ())]  # an oracle is of no seed
        line["seeds"] = len(summaries)
        for metric, figures in (("acc", [s.acc for s in summaries]), ("pass8", [s.passed for s in summaries])):
            values = [figure.value for figure in figures if figure.value is not None]
            line[f"{metric}_between_seeds"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return frontier


def _digest_texts(runs: Sequence[Run]) -> list[str]:
    return sorted(result.problems.texts for run in runs for result in run.tasks.values() if result.problems)


def _average(seeds: Sequence[Sequence[Run]]) -> Run:
    """One run of the means over seeds, problem by problem. Its samples are those of all seeds, its seconds those of one."""
    tasks, spent = {}, [run.seconds for run in chain(*seeds)]
    for task, first in {task: result for run in seeds[0] for task, result in run.tasks.items()}.items():
        results = [run.tasks[task] for run in chain(*seeds) if task in run.tasks]
        own = [each.problems.ordered_as(first.problems.ids) for each in results if each.problems and first.problems]
        samples, counts = sum(each.samples for each in own), Counts.add([each.counts for each in results])
        values = {name: np.mean([each.values[name] for each in own], axis=0) for name in own[0].values}
        means = {name: float(np.mean([each.means[name] for each in results])) for name in first.means}
        texts = tuple(tuple(chain(*of_seeds)) for of_seeds in zip(*(each.sample_texts for each in own), strict=True))
        problems = replace(own[0], values=values, samples=samples, sample_texts=texts)
        tasks[task] = replace(first, means=means, problems=problems, samples=samples, counts=counts)
    seconds = None if None in spent else sum(each or 0.0 for each in spent) / len(seeds)
    return replace(seeds[0][0], tasks=tasks, seconds=seconds)

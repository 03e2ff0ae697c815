"""Baselines that are values without problems: vLLM's `lm-eval-harness` configurations. The interval is that of the run alone."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import yaml  # type: ignore[import-untyped]
from scipy.special import ndtri

from lm_eval_takeover.commands.regress.baseline import Scores, read_single_run
from lm_eval_takeover.commands.regress.verdicts import (
    MOST_PROBLEMS,
    POWER,
    Design,
    Power,
    TaskVerdict,
    correct,
    find_metric,
    judge_fixed,
)
from lm_eval_takeover.errors import ArgumentError, ResultsError, nearest
from lm_eval_takeover.results.problems import ReadOptions
from lm_eval_takeover.results.statistics import as_values, by_cluster
from lm_eval_takeover.storage.files import read_bounded
from lm_eval_takeover.storage.schema import Share, check

ENDINGS = (".yaml", ".yml")


class _Metric(TypedDict):
    name: str  # with its filter: `exact_match,strict-match`
    value: Share


class _Task(TypedDict):
    name: str
    metrics: list[_Metric]


class _File(TypedDict):
    model_name: str
    tasks: list[_Task]
    limit: NotRequired[float | None]
    num_fewshot: NotRequired[int | None]


@dataclass(frozen=True)
class FixedValues:
    """The values by metric and task; `limit` are the problems of each task."""

    path: Path
    model: str
    values: dict[str, dict[str, float]]
    limit: int | None
    num_fewshot: int | None


def read_fixed_values(path: Path, metrics: Sequence[str], tasks: Collection[str]) -> FixedValues:
    """Read a configuration, with only these metrics and tasks if any are named. Raises ResultsError, ArgumentError."""
    try:
        content = yaml.safe_load(read_bounded(path))
        file: _File = check(content, _File)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        raise ResultsError(f"--baseline '{path}': {reason}; expected a configuration of vLLM's lm-eval-harness") from None
    values: dict[str, dict[str, float]] = {}
    for task in file["tasks"]:
        for metric in task["metrics"]:
            names = {"acc", metric["name"], metric["name"].partition(",")[0]}
            if task["name"] in (tasks or [task["name"]]) and names.intersection(metrics or names):
                values.setdefault(metric["name"], {})[task["name"]] = metric["value"]
    if not values:
        known = [f"{task['name']}: {metric['name']}" for task in file["tasks"] for metric in task["metrics"]]
        raise ArgumentError(f"'{path}' has no value of these --tasks and --metric; it has {'; '.join(known)}")
    limit = file.get("limit") or 0
    return FixedValues(path, file["model_name"], values, int(limit) if limit >= 1 else None, file.get("num_fewshot"))


def compare_fixed(
    fixed: FixedValues, results: Path, reading: ReadOptions, limit: float, confidence: float, allowed: Collection[str]
) -> tuple[dict[str, dict[str, TaskVerdict]], Scores, list[str]]:
    """Judge a run by metric and task; the run, and lines on what the file says otherwise. Raises ResultsError, ArgumentError."""
    verdicts, notes = {}, list[str]()
    for name, values in fixed.values.items():
        metric, _, of = name.partition(",")
        run = read_single_run(results, replace(reading, filter=of or reading.filter))
        if run.model != fixed.model.rpartition("/")[2]:
            notes.append(f"the run is of {run.model}, the baseline's values are of {fixed.model}")
        judged = {}
        for task, value in values.items():
            if task not in run.tasks:
                raise ResultsError(f"{task}: missing in the run; {nearest(task, run.tasks)}, or choose tasks with --tasks")
            problems, settings = run.tasks[task].problems, run.tasks[task].settings
            asked = settings.get("num_fewshot")
            if fixed.num_fewshot not in (None, asked) and asked is not None and "num_fewshot" not in allowed:
                raise ArgumentError(
                    f"{task}: num_fewshot is {asked}, and '{fixed.path}' says {fixed.num_fewshot}; run with "
                    f"`--num_fewshot {fixed.num_fewshot}`, or accept it with `--allow num_fewshot`"
                )
            if (found := problems.values.get(find_metric(settings, metric))) is None:
                raise ResultsError(f"{task} has no metric '{name}'; it has {', '.join(problems.values)}")
            if fixed.limit and len(problems) != fixed.limit:
                notes.append(f"{task}: the run has {len(problems):,} problems, the baseline's value is of {fixed.limit:,}")
            judged[task] = judge_fixed(name, by_cluster(found, problems.clusters), value, limit, confidence)
        verdicts[name] = correct(judged, (1 - confidence) / 2)
        notes += run.notes
    return verdicts, run, notes


def plan_fixed(fixed: FixedValues, design: Design, drops: Sequence[float]) -> list[Power]:
    """Plan by task and drop, for its first metric, by exact binomials. Raises ArgumentError."""
    from scipy.stats import binom  # slow to import, and for the plan alone

    if (count := fixed.limit) is None:
        raise ArgumentError(f"--plan: '{fixed.path}' has no number of problems in its field 'limit'")
    rows = []
    of_task = {task: (name, value) for name, values in reversed(fixed.values.items()) for task, value in values.items()}
    for task, (name, value) in of_task.items():
        runs = (judge_fixed(name, as_values(np.arange(count) < right), value, design.limit, design.confidence)
                for right in range(count + 1))  # fmt: skip
        alarms = as_values([run.verdict == "regressed" for run in runs])
        for drop in drops:
            power = round(float(binom.pmf(np.arange(count + 1), count, max(value - drop, 0.0)) @ alarms), 4)
            rows.append(Power(task, count, 1, drop, power, power, _count(value, design, drop)))
    return rows


def _count(value: float, design: Design, drop: float) -> int | None:
    if drop <= design.limit:
        return None
    at_limit, dropped = ((share * (1 - share)) ** 0.5 for share in (value - design.limit, max(value - drop, 0.0)))
    needed = ((float(ndtri(POWER)) * dropped - float(ndtri(design.level)) * at_limit) / (drop - design.limit)) ** 2
    return ceil(needed) if needed <= MOST_PROBLEMS else None

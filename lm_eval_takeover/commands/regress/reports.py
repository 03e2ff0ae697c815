"""Writes the verdict as text, JSON, JUnit XML and a Markdown summary, and a history: a JSON line for each run."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from lm_eval_takeover.commands._output import Table, show_p_value, writing
from lm_eval_takeover.commands.regress.baseline import SeedRuns
from lm_eval_takeover.commands.regress.planning import MOST_PROBLEMS, Power
from lm_eval_takeover.commands.regress.verdicts import AVERAGE, CHANGES, TaskVerdict
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.results.fields import read_lines
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.regular_files import open_regular

WRITER = "`lm-eval-takeover regress --history FILE`"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Check:
    """One metric with its limit: a verdict by task, and of the average."""

    metric: str
    limit: float  # the allowed drop, or the allowed change either way
    tasks: Mapping[str, TaskVerdict]


def describe(verdict: str, checks: Sequence[Check], old: SeedRuns, confidence: float, allowed: Sequence[str]) -> dict[str, Any]:
    """Describe the check for `--format json`: `tasks` and `average` of the first metric, and of each below `metrics`."""
    metrics = {check.metric: _describe_metric(check) for check in checks}
    return {
        "verdict": verdict,
        **metrics[checks[0].metric],
        "metrics": metrics,
        "confidence": confidence,
        "settings": {
            "model": old.settings,
            "tasks": {task: side.settings for task, side in old.tasks.items()},
            "differences_allowed": list(allowed),
        },
    }


def _describe_metric(check: Check) -> dict[str, Any]:
    return {
        "tasks": {task: _describe_verdict(judged) for task, judged in check.tasks.items() if task != AVERAGE},
        AVERAGE: _describe_verdict(check.tasks[AVERAGE]) if AVERAGE in check.tasks else None,
        "limit": check.limit,
    }


def _describe_verdict(judged: TaskVerdict) -> dict[str, Any]:
    """Its fields; None for a number that is not known, as of a Recovery that there is not: JSON has no NaN."""
    return {name: None if isinstance(value, float) and isnan(value) else value for name, value in asdict(judged).items()}


def _show(value: float, form: str = "+.4f") -> str:
    return "-" if isnan(value) else format(value, form)


def lay_out(verdict: str, checks: Sequence[Check], confidence: float, allowed: Sequence[str]) -> list[Table]:
    """Lay out a table for each metric, a line by task; the notes stand below the last."""
    figures = ["Verdict", "Baseline", "Now", "Change", f"{confidence:.0%} interval", "p (Holm)"]
    places = 3 if all(check.limit >= 0.01 for check in checks) else 4
    tables = []
    for check in checks:
        lines = []
        for task, judged in check.tasks.items():
            shares = (_show(share, f".{places}f") for share in (judged.baseline, judged.now))
            change, low, high = (_show(value, f"+.{places}f") for value in (judged.difference, judged.low, judged.high))
            lines.append([task, judged.verdict, *shares, change, f"{low} to {high}", show_p_value(judged.p_holm)])
        tables.append(Table([check.metric if len(checks) > 1 else "Task", *figures], lines))
    return [*tables[:-1], replace(tables[-1], notes=list_notes(verdict, checks, allowed))]


def list_notes(verdict: str, checks: Sequence[Check], allowed: Sequence[str]) -> list[str]:
    """List the verdict, the notes on tasks, and which settings were allowed to differ."""
    limits = [
        f"allowed {'change' if check.metric in CHANGES else 'drop'} of {check.metric} {check.limit:g}" for check in checks
    ]
    notes = [f"{verdict}: {', '.join(limits)}"]
    for check in checks:
        of = f" ({check.metric})" if len(checks) > 1 else ""
        notes += [f"{task}{of}: {judged.note}" for task, judged in check.tasks.items() if judged.note]
    return notes + [f"setting that was allowed to differ: {line}" for line in allowed]


def list_failing(*, strict: bool) -> tuple[str, ...]:
    """The verdicts that fail the check."""
    return ("regressed", "inconclusive") if strict else ("regressed",)


def write_junit(checks: Sequence[Check], *, strict: bool) -> str:
    """A test case by metric and task: regressed ones fail, inconclusive ones are skipped, or fail where `strict`."""
    failing = list_failing(strict=strict)
    cases = [(task, judged, check.limit) for check in checks for task, judged in check.tasks.items()]
    verdicts = [judged.verdict for _, judged, _ in cases]
    suite = ElementTree.Element(
        "testsuite",
        name="lm-eval-takeover regress",
        tests=str(len(cases)),
        failures=str(sum(verdict in failing for verdict in verdicts)),
        errors="0",
        skipped=str(0 if strict else verdicts.count("inconclusive")),
    )
    for task, judged, limit in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=for_terminal(task), name=judged.metric)
        span = f"{_show(judged.difference)} ({_show(judged.low)} to {_show(judged.high)})"
        text = for_terminal(f"{judged.verdict}: {span}, limit {limit:g}; {judged.note}")
        if judged.verdict in failing:
            ElementTree.SubElement(case, "failure", message=text, type=judged.verdict)
        elif judged.verdict == "inconclusive":
            ElementTree.SubElement(case, "skipped", message=text)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def lay_out_plan(rows: Sequence[Power], limit: float) -> Table:
    heading = ["Task", "Problems", "Samples", "Drop", "Power", "Problems for 80 %"]
    lines = []
    for row in rows:
        power = f"{row.power:.1%}" if row.power < 0.1 else f"{row.power:.0%}"
        needed = f"{row.problems_for_80:,}" if row.problems_for_80 else "-"
        lines.append([row.task, f"{row.problems:,}", str(row.samples), f"{row.drop:g}", power, needed])
    notes = [f"Power: the chance to find a drop beyond the allowed {limit:g}."]
    if any(row.problems_for_80 is None for row in rows):
        notes.append(f"-: more than {MOST_PROBLEMS:,} problems, since the drop is not clearly beyond the allowed one.")
    notes.append("Each task is judged alone here; the correction over tasks makes findings rarer.")
    return Table(heading, lines, notes)


# The history: all runs against a baseline share one error rate.


def list_runs(path: Path, baseline: SeedRuns) -> list[str]:
    """List the digests of the runs that were compared with this baseline. Raises ResultsError for another kind of file."""
    if not path.exists():
        return []
    entries = read_lines(path, WRITER, skip=logger.warning)
    lines = [(line.require("baseline", str), line.require("run", str)) for line in entries]
    return list(dict.fromkeys(run for digest, run in lines if digest == baseline.digest))


def digest_run(measured: SeedRuns) -> str:
    """Digest all texts of a run. The same run again counts once."""
    return digest_of({task: [run.texts for run in side.runs] for task, side in measured.tasks.items()})


def add_run(path: Path, baseline: SeedRuns, new: SeedRuns, checks: Sequence[Mapping[str, TaskVerdict]]) -> None:
    """Append a line with the verdicts of each metric. A line that was cut off is ended first. Raises ArgumentError."""
    line = {
        "baseline": baseline.digest,
        "run": digest_run(new),
        "model": new.model,
        "verdicts": [
            {key: [each.metric, each.verdict, None if isnan(each.difference) else each.difference] for key, each in row.items()}
            for row in checks
        ],
    }
    with writing("history", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, follow=True), "ab+") as stream:
            stream.seek(max(stream.tell() - 1, 0))
            start = b"" if stream.read(1) in (b"", b"\n") else b"\n"
            stream.write(start + json.dumps(line).encode() + b"\n")

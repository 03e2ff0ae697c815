"""The verdict as text, JSON, JUnit XML and a Markdown summary."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.etree import ElementTree

from lm_eval_takeover.commands._output import WRITERS, Table, write_markdown
from lm_eval_takeover.commands.regress.baseline import Measured
from lm_eval_takeover.commands.regress.verdicts import AVERAGE, Limit, TaskVerdict, is_drop
from lm_eval_takeover.escaping import for_terminal

Verdicts = dict[str, TaskVerdict]


@dataclass(frozen=True)
class Judged:
    """One metric with its limit: a verdict by task, and of the average."""

    metric: str
    limit: Limit
    tasks: Verdicts


def describe(
    verdict: str, checks: Sequence[Judged], old: Measured, confidence: float, allowed: Sequence[str]
) -> dict[str, Any]:
    """What `--format json` prints: `tasks` and `average` of the first metric, and of each below `metrics`."""
    metrics = {one.metric: _describe_metric(one) for one in checks}
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


def _describe_metric(one: Judged) -> dict[str, Any]:
    return {
        "tasks": {task: asdict(found) for task, found in one.tasks.items() if task != AVERAGE},
        AVERAGE: asdict(one.tasks[AVERAGE]) if AVERAGE in one.tasks else None,
        "limit": str(one.limit),
    }


def lay_out(verdict: str, checks: Sequence[Judged], confidence: float, allowed: Sequence[str]) -> Table:
    """A line by metric and task."""
    heading = ["Task", "Metric", "Verdict", "Baseline", "Now", "Difference", f"{confidence:.0%} interval", "p (Holm)"]
    lines = [
        [
            task,
            found.metric,
            found.verdict,
            f"{found.baseline:.4f}",
            f"{found.now:.4f}",
            f"{found.difference:+.4f}",
            f"{found.low:+.4f} to {found.high:+.4f}",
            f"{found.p_holm:.3g}",
        ]
        for one in checks
        for task, found in one.tasks.items()
    ]
    return Table(heading, lines, list_notes(verdict, checks, allowed), names=2)


def list_notes(verdict: str, checks: Sequence[Judged], allowed: Sequence[str]) -> list[str]:
    """The verdict, what each task adds to it, and which settings were allowed to differ."""
    limits = [f"allowed {'drop' if is_drop(one.metric) else 'change'} of {one.metric} {one.limit}" for one in checks]
    notes = [f"{verdict}: {', '.join(limits)}"]
    for one in checks:
        of = f" ({one.metric})" if len(checks) > 1 else ""
        notes += [f"{task}{of}: {found.note}" for task, found in one.tasks.items() if found.note]
    return notes + [f"setting that was allowed to differ: {line}" for line in allowed]


def write_summary(verdict: str, checks: Sequence[Judged], confidence: float, allowed: Sequence[str]) -> str:
    """Markdown for `$GITHUB_STEP_SUMMARY`."""
    table = write_markdown(lay_out(verdict, checks, confidence, allowed))
    return f"### lm-eval-takeover regress: {verdict}\n\n{table}\n"


def write_junit(checks: Sequence[Judged], *, strict: bool) -> str:
    """A test case by metric and task: regressed ones fail, inconclusive ones are skipped, or fail where `strict`."""
    failing = ("regressed", "inconclusive") if strict else ("regressed",)
    cases = [(task, found, one.limit) for one in checks for task, found in one.tasks.items()]
    verdicts = [found.verdict for _, found, _ in cases]
    skipped = 0 if strict else verdicts.count("inconclusive")
    suite = ElementTree.Element(
        "testsuite",
        name="lm-eval-takeover regress",
        tests=str(len(cases)),
        failures=str(sum(verdict in failing for verdict in verdicts)),
        errors="0",
        skipped=str(skipped),
    )
    for task, found, limit in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=for_terminal(task), name=found.metric)
        text = for_terminal(
            f"{found.verdict}: {found.difference:+.4f} ({found.low:+.4f} to {found.high:+.4f}), limit {limit}; {found.note}"
        )
        if found.verdict in failing:
            ElementTree.SubElement(case, "failure", message=text, type=found.verdict)
        elif found.verdict == "inconclusive":
            ElementTree.SubElement(case, "skipped", message=text)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def write_plan(found: dict[str, list[dict[str, Any]]], limit: Limit, format_name: str) -> str:
    """Both tables of a plan, and what they say of samples and problems."""

    def share(value: float) -> str:
        return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"

    write = WRITERS[format_name]
    heading = ["Task", "Problems", "Samples", "Drop", "Power", "2x samples", "2x problems", "Problems for 80 %"]
    rows, quiet = found["rows"], found["no_change"]
    powers = ("power", "power_twice_samples", "power_twice_problems")
    lines = [
        [
            *(r["task"], str(r["problems"]), str(r["samples"]), f"{r['drop']:g}"),
            *(share(r[name]) for name in powers),
            str(r["problems_for_80"] or "-"),
        ]
        for r in rows
    ]
    runs = quiet[0]["runs"]
    quiet_heading = ["Task", "Problems", "Passes", "Alarms", "Unlucky 5 %", f"Any of {runs}", "With --history"]
    shown = ("passes", "alarms", "alarms_worst_20th", "any_alarm", "any_alarm_history")
    quiet_lines = [[r["task"], str(r["problems"]), *(share(r[name]) for name in shown)] for r in quiet]
    samples, problems = (sum(row[name] for row in rows) / len(rows) for name in powers[1:])
    if abs(samples - problems) < 0.02:
        advice = "More samples of each problem buy as much power as more problems"
    else:
        advice = f"More {'samples of each problem' if samples > problems else 'problems'} buy more power"
    notes = [f"Power: the chance to find a drop beyond the allowed {limit}.", f"{advice}."]
    quiet_notes = [
        "Passes, alarms: how often a run passes, or alarms falsely, if nothing changed; unlucky 5 %: with the worst 5 % of "
        f"baselines; any of {runs}: how often one of so many runs against one baseline alarms.",
        "Each task is judged alone here; the correction over tasks makes both kinds of finding rarer.",
    ]
    return f"{write(Table(heading, lines, notes))}\n{write(Table(quiet_heading, quiet_lines, quiet_notes))}"


def write_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

"""The verdict as text, JSON, JUnit XML and a Markdown summary."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from lm_eval_takeover.commands.regress.baseline import Measured
from lm_eval_takeover.commands.regress.gate import AVERAGE, DROPS, Limit, TaskVerdict

Verdicts = dict[str, TaskVerdict]
Rows = Sequence[Sequence[str]]


def describe(
    verdict: str, tasks: Verdicts, old: Measured, limit: Limit, confidence: float, allowed: Sequence[str]
) -> dict[str, Any]:
    """What `--format json` prints."""
    return {
        "verdict": verdict,
        "tasks": {task: asdict(found) for task, found in tasks.items() if task != AVERAGE},
        AVERAGE: asdict(tasks[AVERAGE]) if AVERAGE in tasks else None,
        "limit": str(limit),
        "confidence": confidence,
        "settings": {
            "model": old.settings,
            "tasks": {task: side.settings for task, side in old.tasks.items()},
            "differences_allowed": list(allowed),
        },
    }


def list_rows(tasks: Verdicts, confidence: float) -> list[list[str]]:
    """A heading and a line by task."""
    heading = ["Task", "Metric", "Baseline", "Now", "Difference", f"{confidence:.0%} interval", "p (Holm)", "Verdict"]
    lines = [
        [
            task,
            found.metric,
            f"{found.baseline:.4f}",
            f"{found.now:.4f}",
            f"{found.difference:+.4f}",
            f"{found.low:+.4f} to {found.high:+.4f}",
            f"{found.p_holm:.3g}",
            found.verdict,
        ]
        for task, found in tasks.items()
    ]
    return [heading, *lines]


def write_aligned(rows: Rows) -> str:
    """Columns as wide as their widest cell: names to the left, figures to the right."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [
        "  ".join(c.ljust(w) if place < 2 else c.rjust(w) for place, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def write_markdown(rows: Rows) -> str:
    heading, *lines = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "|" + "|".join(["---", "---", *["--:"] * (len(rows[0]) - 2)]) + "|"
    return "\n".join([heading, rule, *lines]) + "\n"


def list_notes(verdict: str, tasks: Verdicts, limit: Limit, allowed: Sequence[str]) -> list[str]:
    """The verdict, what each task adds to it, and which settings were allowed to differ."""
    kind = "drop" if all(found.metric in DROPS for found in tasks.values()) else "change"
    notes = [f"{verdict}: allowed {kind} {limit}"]
    notes += [f"{task}: {found.note}" for task, found in tasks.items() if found.note]
    return notes + [f"setting that was allowed to differ: {line}" for line in allowed]


def write_summary(verdict: str, tasks: Verdicts, limit: Limit, confidence: float, allowed: Sequence[str]) -> str:
    """Markdown for `$GITHUB_STEP_SUMMARY`."""
    notes = "\n".join(f"- {note}" for note in list_notes(verdict, tasks, limit, allowed))
    return f"### lm-eval-takeover regress: {verdict}\n\n{write_markdown(list_rows(tasks, confidence))}\n{notes}\n\n"


def write_junit(tasks: Verdicts, limit: Limit, *, strict: bool) -> str:
    """A test case by task: regressed ones fail, inconclusive ones are skipped, or fail where `strict`."""
    failing = ("regressed", "inconclusive") if strict else ("regressed",)
    verdicts = [found.verdict for found in tasks.values()]
    skipped = 0 if strict else verdicts.count("inconclusive")
    suite = ElementTree.Element(
        "testsuite",
        name="lm-eval-takeover regress",
        tests=str(len(tasks)),
        failures=str(sum(verdict in failing for verdict in verdicts)),
        errors="0",
        skipped=str(skipped),
    )
    for task, found in tasks.items():
        case = ElementTree.SubElement(suite, "testcase", classname=task, name=found.metric)
        text = f"{found.verdict}: {found.difference:+.4f} ({found.low:+.4f} to {found.high:+.4f}), limit {limit}; {found.note}"
        if found.verdict in failing:
            ElementTree.SubElement(case, "failure", message=text, type=found.verdict)
        elif found.verdict == "inconclusive":
            ElementTree.SubElement(case, "skipped", message=text)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def write_plan(found: dict[str, list[dict[str, Any]]], limit: Limit, write: Callable[[Rows], str]) -> str:
    """Both tables of a plan, and what they say of samples and problems."""

    def share(value: float) -> str:
        return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"

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
    return "\n".join(
        [
            f"Chance to find a drop beyond the allowed {limit}:\n",
            write([heading, *lines]),
            "If nothing changed: how often a run passes or alarms falsely; how often with the unluckiest 5 % of baselines; how",
            f"often any of {runs} runs against one baseline alarms, and how often with --history.\n",
            write([quiet_heading, *quiet_lines]),
            f"{advice}. Each task is judged alone here; the correction over tasks makes both kinds of finding rarer.\n",
        ]
    )


def write_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

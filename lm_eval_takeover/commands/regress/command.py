"""The options of `regress`, what it prints, and its exit status."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal

if TYPE_CHECKING:
    from lm_eval_takeover.commands.regress.baseline import Measured
    from lm_eval_takeover.commands.regress.verdicts import Limit

HELP = "check a run for regressions against a baseline, in CI"
DESCRIPTION = """\
Compare a run with a baseline, problem by problem: each task, and the average over tasks. The verdict is `regressed` if the
interval of the difference lies below the allowed drop, `pass` if it lies above, else `inconclusive`. Exit status: 0 pass or
inconclusive, 1 regressed (with --strict also inconclusive), 2 a wrong call or settings that differ from the baseline's."""
EXAMPLE = """examples:
  lm-eval-takeover regress results/seed0 results/seed1 --baseline baseline.json --update
  lm-eval-takeover regress results/now --baseline baseline.json --max_drop 0.02 --history history.jsonl
  lm-eval-takeover regress --baseline baseline.json --plan --drop 0.02 0.05 0.10
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "results",
        type=Path,
        nargs="*",
        metavar="RESULTS",
        help="the run's --output_path, with --log_samples; with --update several seeds are allowed",
    )
    add("--baseline", type=Path, metavar="FILE", help="the baseline file (JSON)")
    add("--update", action="store_true", help="write the baseline from RESULTS")
    add("--base", type=Path, metavar="RESULTS", help="with --update: results of the base alone, to check Recovery")
    add(
        "--reference",
        type=Path,
        metavar="RESULTS",
        help="with --update: results of the thinking model, or of the guide alone",
    )
    add(
        "--metric",
        nargs="+",
        default=["acc"],
        help="one or more of acc, pass@K, maj@N, recovery, recovery_pass@K (--max_drop), realized_rate, truncated, "
        "guide_passes_per_token, no_answer, unparsed, timed_out, unclosed_think (--max_change) (default: acc)",
    )
    add(
        "--max_drop",
        default="0.02",
        metavar="X",
        help="allowed drop, absolute (0.02) or relative (5%%) (default: 0.02)",
    )
    add("--max_change", default="0.02", metavar="X", help="allowed change, up or down (default: 0.02)")
    add(
        "--confidence",
        type=float,
        default=0.95,
        metavar="P",
        help="confidence of the two-sided interval (default: 0.95)",
    )
    add("--average_only", action="store_true", help="judge only the average over tasks, which has the most data")
    add(
        "--history",
        type=Path,
        metavar="FILE",
        help="file with the runs against this baseline so far; all runs share one error rate",
    )
    add(
        "--runs",
        type=int,
        default=30,
        metavar="N",
        help="for --history: number of runs planned against one baseline (default: 30)",
    )
    add("--strict", action="store_true", help="exit with 1 also if the verdict is inconclusive")
    add("--tasks", nargs="+", default=[], metavar="TASK", help="check only these tasks (default: all of the baseline)")
    add("--allow", nargs="+", default=[], metavar="SETTING", help="settings that may differ from the baseline's")
    add(
        "--plan",
        action="store_true",
        help="print the rate of false alarms and the chance to notice a drop; needs only the baseline",
    )
    add(
        "--drop",
        type=float,
        nargs="+",
        default=[0.02, 0.05, 0.10],
        metavar="X",
        help="for --plan: drops to try (default: 0.02 0.05 0.10)",
    )
    add("--samples", type=int, default=8, metavar="N", help="for --plan: samples of each problem (default: 8)")
    add("--format", choices=("table", "md", "json"), default="table", help="(default: table)")
    add("--junit", type=Path, metavar="FILE", help="also write JUnit XML to this file")


def run(options: argparse.Namespace) -> int:
    if not 0.5 <= options.confidence < 1:
        raise ArgumentError(f"--confidence {options.confidence} is not a share from 0.5 to below 1")
    if not options.results and (options.update or not options.plan):
        raise ArgumentError("regress needs RESULTS, the folder of `lm_eval … --output_path`")
    if len(options.results) > 1 and not (options.update or options.plan):
        raise ArgumentError(
            f"RESULTS are {len(options.results)} folders; one run is compared, several are for --update"
        )
    if options.runs < 1:
        raise ArgumentError(f"--runs {options.runs} is not a number of runs of at least 1")
    if options.baseline is None and not (options.plan and options.results):
        raise ArgumentError("regress needs --baseline FILE; write one from a good run with --update")
    if (options.base is None) != (options.reference is None) or (options.base is not None and not options.update):
        raise ArgumentError(
            "--base and --reference go together, and with --update: later checks read them from the baseline"
        )
    from lm_eval_takeover.commands.regress.baseline import add_anchors, read_baseline, read_measured, read_seeds

    if options.junit is not None:
        from lm_eval_takeover.commands._output import check_replaceable

        check_replaceable("junit", options.junit, "a JUnit file of regress")
    limits = {metric: _read_limit(options, metric) for word in options.metric for metric in word.split(",") if metric}
    if options.plan:
        return _plan(options, limits)
    if options.update:
        new = _choose(read_seeds(options.results), options.tasks)
        new = add_anchors(new, options.base, options.reference) if options.base else new
        return _update(options.baseline, new)
    new = _choose(read_measured(options.results[0]), options.tasks)
    return _compare(options, _choose(read_baseline(options.baseline), options.tasks), new, limits)


def _read_limit(options: argparse.Namespace, metric: str) -> "Limit":
    """Raises ArgumentError for an unknown metric or a limit that is no number."""
    from lm_eval_takeover.commands.regress.verdicts import CHANGES, DROPS, Limit, is_drop
    from lm_eval_takeover.errors import nearest

    if not is_drop(metric) and metric not in CHANGES:
        raise ArgumentError(f"--metric '{metric}' is not known; {nearest(metric, (*DROPS, *CHANGES))}")
    name = "max_drop" if is_drop(metric) else "max_change"
    text = str(getattr(options, name))
    try:
        amount = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < 1:
        raise ArgumentError(f"--{name} '{text}' is not a share from 0 to 1, as 0.02, or of the baseline, as 5%")
    return Limit(amount, text.endswith("%"))


def _choose(measured: "Measured", tasks: list[str]) -> "Measured":
    """Only these tasks, where any are named. Raises ArgumentError for one that is not there."""
    if not tasks:
        return measured
    if missing := [task for task in tasks if task not in measured.tasks]:
        raise ArgumentError(f"--tasks {missing[0]} is not there; known: {', '.join(measured.tasks)}")
    return replace(measured, tasks={task: measured.tasks[task] for task in tasks})


def _update(path: Path, new: "Measured") -> int:
    from lm_eval_takeover.commands._output import check_replaceable
    from lm_eval_takeover.commands.regress.baseline import write_baseline

    check_replaceable("baseline", path, "a baseline")
    write_baseline(path, new)
    counts = ", ".join(f"{task} ({len(side.problems)} problems)" for task, side in new.tasks.items())
    for note in new.notes:
        print(note, file=sys.stderr)
    runs = f"{new.seeds} runs, " if new.seeds > 1 else ""
    print(for_terminal(f"'{path}' is the baseline now: {new.label}, {runs}{counts}"))
    return 0


def _plan(options: argparse.Namespace, limits: dict[str, "Limit"]) -> int:
    from lm_eval_takeover.commands.regress.baseline import read_baseline, read_seeds
    from lm_eval_takeover.commands.regress.planning import plan
    from lm_eval_takeover.commands.regress.reports import write_json, write_plan

    if len(limits) > 1:
        raise ArgumentError(f"--plan takes one --metric, and {len(limits)} are given: {', '.join(limits)}")
    ((metric, limit),) = limits.items()
    if options.samples < 1 or not all(0 < drop < 1 for drop in options.drop):
        raise ArgumentError("--plan needs --samples of at least 1 and --drop between 0 and 1")
    baseline = read_seeds(options.results) if options.results else read_baseline(options.baseline)
    chosen = _choose(baseline, options.tasks)
    found = plan(chosen, metric, limit, options.confidence, options.drop, options.samples, options.runs)
    if options.format == "json":
        sys.stdout.write(write_json(found))
    else:
        sys.stdout.write(write_plan(found, limit, options.format))
    return 0


def _compare(options: argparse.Namespace, old: "Measured", new: "Measured", limits: dict[str, "Limit"]) -> int:
    from lm_eval_takeover.commands._output import write_terminal
    from lm_eval_takeover.commands.regress import history, reports, verdicts

    verdicts.check_tasks(old, new)
    allowed = verdicts.check_settings(old, new, options.allow, f"--baseline '{options.baseline}'")
    known = {*history.list_runs(options.history, old), history.digest_run(new)} if options.history else set()
    runs = max(options.runs, len(known)) if options.history else 1
    judged = {"runs": runs, "average_only": options.average_only}
    for note in new.notes:
        print(note, file=sys.stderr)
    checks = [
        reports.Judged(metric, limit, verdicts.compare(old, new, metric, limit, options.confidence, **judged))
        for metric, limit in limits.items()
    ]
    if options.history:
        history.add_run(options.history, old, new, [one.tasks for one in checks])
    verdict = verdicts.worst([found for one in checks for found in one.tasks.values()])
    summary = reports.write_summary(verdict, checks, options.confidence, allowed)
    if options.format == "json":
        found = reports.describe(verdict, checks, old, options.confidence, allowed)
        sys.stdout.write(reports.write_json(found))
    elif options.format == "md":
        sys.stdout.write(summary)
    else:
        sys.stdout.write(write_terminal(reports.lay_out(verdict, checks, options.confidence, allowed)))
    if options.history:
        print(_describe_history(len(known), options.runs), file=sys.stderr)
    _write_files(options, reports.write_junit(checks, strict=options.strict), summary)
    failing: Any = ("regressed", "inconclusive") if options.strict else ("regressed",)
    return int(verdict in failing)


def _describe_history(count: int, planned: int) -> str:
    if count <= planned:
        return f"run {count} of {planned} against this baseline, which share one error rate"
    return (
        f"{count} runs against this baseline, {planned} were planned: false alarms over all of them are now more frequent than "
        "--confidence says; take a new baseline with --update"
    )


def _write_files(options: argparse.Namespace, junit: str, summary: str) -> None:
    """JUnit XML where it is asked for, the summary where GitHub wants one. Raises ArgumentError."""
    from lm_eval_takeover.storage.whole_files import write_text

    step = os.environ.get("GITHUB_STEP_SUMMARY")
    try:
        if options.junit:
            write_text(options.junit, junit)
        if step:
            with Path(step).open("a", encoding="utf-8") as stream:
                stream.write(summary)
    except OSError as error:
        raise ArgumentError(f"'{error.filename}' cannot be written: {error.strerror}") from error

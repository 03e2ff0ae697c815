"""The options of `regress`, what it prints, and its exit status."""

import argparse
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lm_eval_takeover.commands._options import add_shared, check_least, read_share
from lm_eval_takeover.commands._output import WRITERS, check_replaceable, write_file, write_json
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.escaping import for_terminal

if TYPE_CHECKING:
    from lm_eval_takeover.commands.regress.baseline import SeedRuns
    from lm_eval_takeover.results.problems import ReadOptions

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


_METRICS = (
    "one or more of acc, pass@K, maj@N, recovery, recovery_pass@K and any other metric that is better if higher "
    "(--max_drop), realized_rate, guide_passes_per_token, truncated, no_answer, restated, unparsed, timed_out, unboxed, "
    "unclosed_think (--max_change) (default: acc)"
)
_LOG = "the baseline file (JSON); or a log to compare with: a folder of results, samples_*.jsonl, *.eval"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    results = "the run's --output_path, with --log_samples; with --update several seeds are allowed"
    add("results", nargs="*", type=Path, metavar="RESULTS", help=results)
    add("--baseline", type=Path, metavar="FILE", help=_LOG)
    add("--update", action="store_true", help="write the baseline from RESULTS")
    add("--base", type=Path, metavar="RESULTS", help="with --update: results of the base alone, to check Recovery")
    thinking = "with --update: results of the thinking model, or of the guide alone"
    add("--reference", type=Path, metavar="RESULTS", help=thinking)
    add("--metric", nargs="+", default=["acc"], help=_METRICS)
    for name, word in (("drop", "drop"), ("change", "change, up or down")):
        add(f"--max_{name}", type=read_share, default=0.02, metavar="X", help=f"allowed {word} (default: 0.02)")
    sure = "confidence of the two-sided interval (default: 0.95)"
    add("--confidence", type=float, default=0.95, metavar="P", help=sure)
    add("--average_only", action="store_true", help="judge only the average over tasks, which has the most data")
    so_far = "file with the runs against this baseline so far; all runs share one error rate"
    add("--history", type=Path, metavar="FILE", help=so_far)
    planned = "for --history: number of runs planned against one baseline (default: 30)"
    add("--runs", type=int, default=30, metavar="N", help=planned)
    add("--strict", action="store_true", help="exit with 1 also if the verdict is inconclusive")
    add("--tasks", nargs="+", default=[], metavar="TASK", help="check only these tasks (default: all of the baseline)")
    add("--allow", nargs="+", default=[], metavar="SETTING", help="settings that may differ from the baseline's")
    add("--plan", action="store_true", help="print the chance to notice a drop; needs only the baseline")
    drops = "for --plan: drops to try (default: 0.02 0.05 0.10)"
    add("--drop", type=float, nargs="+", default=[0.02, 0.05, 0.10], metavar="X", help=drops)
    add("--samples", type=int, default=8, metavar="N", help="for --plan: samples of each problem (default: 8)")
    add("--junit", type=Path, metavar="FILE", help="also write JUnit XML to this file")
    add_shared(parser, "filter", "max_missing", "format", format={"choices": ("table", "md", "json")})


def run(options: argparse.Namespace) -> int:
    _check_call(options)
    from lm_eval_takeover.commands.regress.baseline import add_anchors, read_seeds, read_single_run
    from lm_eval_takeover.results.problems import ReadOptions

    if options.junit is not None:
        check_replaceable("junit", options.junit, "a JUnit file of regress")
    reading = ReadOptions(options.filter, options.max_missing)
    if options.plan:
        read = read_seeds(options.results, reading) if options.results else _read_baseline(options.baseline, reading)
        return _plan(options, _choose(read, options.tasks))
    if options.update:
        new = _choose(read_seeds(options.results, reading), options.tasks)
        new = add_anchors(new, options.base, options.reference) if options.base else new
        return _update(options.baseline, new)
    new = _choose(read_single_run(options.results[0], reading), options.tasks)
    return _compare(options, _choose(_read_baseline(options.baseline, reading), options.tasks), new)


def _read_baseline(path: Path, reading: "ReadOptions") -> "SeedRuns":
    """A baseline file, or another run's log. Raises ResultsError."""
    from lm_eval_takeover.commands.regress.baseline import read_baseline, read_single_run

    is_log = path.is_dir() or path.suffix in (".jsonl", ".eval") or path.name.startswith("results_")
    return read_single_run(path, reading) if is_log else read_baseline(path)


def _check_call(options: argparse.Namespace) -> None:
    """Raise ArgumentError for options that do not go together."""
    if not 0.5 <= options.confidence < 1:
        raise ArgumentError(f"--confidence {options.confidence} is not a share from 0.5 to below 1")
    if not options.results and (options.update or not options.plan):
        raise ArgumentError("regress needs RESULTS, the folder of `lm_eval … --output_path`")
    if len(options.results) > 1 and not (options.update or options.plan):
        raise ArgumentError(f"RESULTS are {len(options.results)} folders; one run is compared, several are for --update")
    check_least(options, 1, "runs", "samples")
    if options.baseline is None and not (options.plan and options.results):
        raise ArgumentError("regress needs --baseline FILE; write one from a good run with --update")
    if (options.base is None) != (options.reference is None) or (options.base is not None and not options.update):
        raise ArgumentError("--base and --reference go together, and with --update: later checks read them from the baseline")


def _find_limits(options: argparse.Namespace, *runs: "SeedRuns") -> dict[str, float]:
    """The limit of each metric. Raises ArgumentError for one that nothing is known of."""
    from lm_eval_takeover.commands.regress.verdicts import CHANGES, is_drop

    own = {metric for run in runs for side in run.tasks.values() for metric in side.problems.values}
    limits = {}
    for metric in (metric for word in options.metric for metric in word.split(",") if metric):
        if not is_drop(metric) and metric not in own.union(CHANGES):
            raise ArgumentError(f"--metric '{metric}' is not known; {nearest(metric, own.union(CHANGES))}")
        limits[metric] = float(options.max_change if metric in CHANGES else options.max_drop)
    if not limits:
        raise ArgumentError("--metric is empty; expected one or more names, such as acc")
    return limits


def _choose(measured: "SeedRuns", tasks: list[str]) -> "SeedRuns":
    """Keep only these tasks, if any are named. Raises ArgumentError for one that is not there."""
    if not tasks:
        return measured
    if missing := [task for task in tasks if task not in measured.tasks]:
        raise ArgumentError(f"--tasks {missing[0]} is not there; known: {', '.join(measured.tasks)}")
    return replace(measured, tasks={task: measured.tasks[task] for task in tasks})


def _update(path: Path, new: "SeedRuns") -> int:
    from lm_eval_takeover.commands.regress.baseline import write_baseline

    check_replaceable("baseline", path, "a baseline")
    write_baseline(path, new)
    counts = ", ".join(f"{task} ({len(side.problems)} problems)" for task, side in new.tasks.items())
    for note in new.notes:
        print(note, file=sys.stderr)
    runs = f"{new.seeds} runs, " if new.seeds > 1 else ""
    print(for_terminal(f"'{path}' is the baseline now: {new.label}, {runs}{counts}"))
    return 0


def _plan(options: argparse.Namespace, chosen: "SeedRuns") -> int:
    from lm_eval_takeover.commands.regress.planning import plan
    from lm_eval_takeover.commands.regress.reports import lay_out_plan

    limits = _find_limits(options, chosen)
    if len(limits) > 1:
        raise ArgumentError(f"--plan takes one --metric, and {len(limits)} are given: {', '.join(limits)}")
    ((metric, limit),) = limits.items()
    if not all(0 < drop < 1 for drop in options.drop):
        raise ArgumentError(f"--drop {' '.join(map(str, options.drop))}: expected shares between 0 and 1")
    rows = plan(chosen, metric, limit, options.confidence, options.drop, options.samples)
    as_json = options.format == "json"
    table = {"rows": [asdict(row) for row in rows]}
    sys.stdout.write(write_json(table) if as_json else WRITERS[options.format](lay_out_plan(rows, limit)))
    return 0


def _compare(options: argparse.Namespace, old: "SeedRuns", new: "SeedRuns") -> int:
    from lm_eval_takeover.commands.regress import reports, verdicts

    limits = _find_limits(options, old, new)
    notes = (*old.notes, *new.notes)
    if options.history and not old.digest:
        raise ArgumentError(f"--history needs a baseline file, and '{options.baseline}' is a log; write one with --update")
    old, new = verdicts.align(old, new, options.max_missing)
    allowed = verdicts.check_settings(old, new, options.allow, f"--baseline '{options.baseline}'")
    digests = {*reports.list_runs(options.history, old), reports.digest_run(new)} if options.history else set()
    runs = max(options.runs, len(digests)) if options.history else 1
    judged = {"runs": runs, "average_only": options.average_only}
    for note in dict.fromkeys(notes):
        print(note, file=sys.stderr)
    checks = [
        reports.Check(metric, limit, verdicts.compare(old, new, metric, limit, options.confidence, **judged))
        for metric, limit in limits.items()
    ]
    if all(judged.note == verdicts.SAME for check in checks for judged in check.tasks.values()):
        print("the run is the baseline's own: all texts and verdicts are the same, so nothing is tested", file=sys.stderr)
    if options.history:
        reports.add_run(options.history, old, new, [check.tasks for check in checks])
    verdict = verdicts.worst([judged for check in checks for judged in check.tasks.values()])
    tables = reports.lay_out(verdict, checks, options.confidence, allowed)
    as_table, as_markdown = ("\n".join(map(WRITERS[form], tables)) for form in ("table", "md"))
    summary = f"### lm-eval-takeover regress: {verdict}\n\n{as_markdown}\n"
    if options.format == "json":
        described = reports.describe(verdict, checks, old, options.confidence, allowed)
        sys.stdout.write(write_json(described))
    else:
        sys.stdout.write(summary if options.format == "md" else as_table)
    if options.history:
        line = f"run {len(digests)} of {options.runs} against this baseline, which share one error rate"
        if len(digests) > options.runs:
            line = (
                f"{len(digests)} runs against this baseline, {options.runs} were planned: false alarms over all of them are now "
                "more frequent than --confidence says; take a new baseline with --update"
            )
        print(line, file=sys.stderr)
    _write_files(options, reports.write_junit(checks, strict=options.strict), summary)
    return int(verdict in reports.list_failing(strict=options.strict))


def _write_files(options: argparse.Namespace, junit: str, summary: str) -> None:
    """Write JUnit XML if asked for, and the summary in GitHub's CI. Raises ArgumentError."""
    if options.junit:
        write_file("junit", options.junit, junit)
    if step := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(step).open("a", encoding="utf-8") as stream:
                stream.write(summary)
        except OSError as error:
            raise ArgumentError(f"GITHUB_STEP_SUMMARY '{step}' cannot be written: {error.strerror}") from error

"""`regress` from its options to its exit status: what it reads; the verdict as text, JSON, JUnit XML and a Markdown summary.

A baseline may also be values without problems, of one of vLLM's `lm-eval-harness` configurations: then the interval is that of
the run alone.
"""

import argparse
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict
from xml.etree import ElementTree

import yaml  # type: ignore[import-untyped]

from lm_eval_takeover.commands._output import WRITERS, Table, check_replaceable, show_p, write_file, write_json
from lm_eval_takeover.commands.regress import verdicts
from lm_eval_takeover.commands.regress.baseline import read_baseline, read_single_run, write_baseline
from lm_eval_takeover.commands.regress.matching import align_runs, check_settings
from lm_eval_takeover.commands.regress.planning import MOST_PROBLEMS, Design, Power, plan
from lm_eval_takeover.commands.regress.verdicts import AVERAGE, CHANGES, TaskVerdict
from lm_eval_takeover.errors import ArgumentError, ResultsError, nearest
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.results.files import Run
from lm_eval_takeover.results.problems import ACC, ReadOptions
from lm_eval_takeover.results.stored import COSTS
from lm_eval_takeover.storage import schema
from lm_eval_takeover.storage.files import read_bounded

ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class Check:
    """One metric with its limit: a verdict by task, and of the average."""

    metric: str
    limit: float  # the allowed drop, or the allowed change either way
    tasks: Mapping[str, TaskVerdict]


def regress(options: argparse.Namespace) -> int:
    """Plan, write a baseline, or compare a run with one. Returns the exit status. Raises ArgumentError, ResultsError."""
    if options.junit is not None:
        check_replaceable("junit", options.junit, "a JUnit file of regress")
        options.junit.unlink(missing_ok=True)  # an earlier call's says nothing of this one, which may end with an error
    reading = ReadOptions(options.filter, options.max_missing, options.group)
    if options.baseline is not None and options.baseline.suffix in ENDINGS and not options.update:
        return _use_fixed_values(options, reading)
    if options.plan:
        if options.results and options.baseline:
            raise ArgumentError(
                f"--plan is of '{options.results}' or of --baseline '{options.baseline}'; leave one of them out"
            )
        if options.group and not options.results:
            raise ArgumentError("--group: a baseline holds no documents; plan with RESULTS, the run that it was written from")
        read = read_single_run(options.results, reading) if options.results else _read_baseline(options.baseline, reading)
        return _plan(options, _choose(read, options.tasks))
    new = _choose(read_single_run(options.results, reading), options.tasks)
    if options.update:
        return _update(options, new)
    return _compare(options, _choose(_read_baseline(options.baseline, reading), options.tasks), new)


def _read_baseline(path: Path, reading: ReadOptions) -> Run:
    """A baseline file, or another run's log. Raises ResultsError."""
    is_log = path.is_dir() or path.suffix == ".jsonl" or path.name.startswith("results_")
    return read_single_run(path, reading) if is_log else read_baseline(path)


def _choose(measured: Run, tasks: list[str]) -> Run:
    """Keep only these tasks, if any are named. Raises ArgumentError for one that is not there."""
    if not tasks:
        return measured
    if missing := [task for task in tasks if task not in measured.tasks]:
        raise ArgumentError(f"--tasks {missing[0]} is not there; known: {', '.join(measured.tasks)}")
    return replace(measured, tasks={task: measured.tasks[task] for task in tasks})


def _find_limits(options: argparse.Namespace, *runs: Run) -> dict[str, float]:
    """The limit of each metric. Raises ArgumentError for one that nothing is known of."""
    sides = [side for run in runs for side in run.tasks.values()]
    own = {metric for side in sides for metric in side.problems.values if metric not in COSTS}
    named = {side.settings.get("metric"): side.settings.get("filter") for side in sides}  # what tasks call their acc
    own |= {str(name) for name in named} | {f"{name},{of}" for name, of in named.items()}
    limits = {}
    words = options.metric or [ACC]
    for metric in (part for word in words for part in ([word] if word in own else word.split(",")) if part):
        if not re.fullmatch(r"acc|(pass|maj)@[1-9]\d*", metric) and metric not in own.union(CHANGES):
            raise ArgumentError(f"--metric '{metric}' is not known; {nearest(metric, own.union(CHANGES))}")
        limits[metric] = float(options.max_change if metric in CHANGES else options.max_drop)
    if not limits:
        raise ArgumentError("--metric is empty; expected one or more names, such as acc")
    return limits


def _update(options: argparse.Namespace, new: Run) -> int:
    path = options.baseline
    check_replaceable("baseline", path, "a baseline")
    write_baseline(path, new)
    counts = ", ".join(f"{task} ({len(side.problems)} problems)" for task, side in new.tasks.items())
    for note in new.notes:
        print(note, file=sys.stderr)
    print(for_terminal(f"'{path}' is the baseline now: {new.label}, {counts}"))
    drops = [drop for drop in options.drop if drop > options.max_drop] or options.drop
    rows = plan(new, Design(options.max_drop, options.confidence), drops, tasks=False)
    sys.stdout.write(WRITERS["table"](_lay_out_plan(rows, options.max_drop)))
    return 0


def _use_fixed_values(options: argparse.Namespace, reading: ReadOptions) -> int:
    """Compare a run with values that are known without problems. Returns the exit status."""
    file, by_metric = _read_fixed_values(options.baseline, options.metric or [], options.tasks)
    for name in ("max_changed", "plan"):
        if (given := getattr(options, name)) is not None and given is not False:
            raise ArgumentError(f"--{name} needs the answers of the baseline, and '{options.baseline}' has none")
    checks, notes = [], list[str]()
    for name, values in by_metric.items():
        metric, _, of = name.partition(",")
        run = read_single_run(options.results, replace(reading, filter=of or reading.filter))
        if run.model != file["model_name"].rpartition("/")[2]:
            notes.append(f"the run is of {run.model}, the baseline's values are of {file['model_name']}")
        judged = {}
        for task, value in values.items():
            if task not in run.tasks:
                raise ResultsError(f"{task}: missing in the run; {nearest(task, run.tasks)}, or choose tasks with --tasks")
            problems, settings = run.tasks[task].problems, run.tasks[task].settings
            asked, shots = settings.get("num_fewshot"), file.get("num_fewshot")
            if shots not in (None, asked) and asked is not None and "num_fewshot" not in options.allow:
                raise ArgumentError(
                    f"{task}: num_fewshot is {asked}, and '{options.baseline}' says {shots}; run with "
                    f"`--num_fewshot {shots}`, or accept it with `--allow num_fewshot`"
                )
            if (found := problems.values.get(verdicts.find_metric(settings, metric))) is None:
                raise ResultsError(f"{task} has no metric '{name}'; it has {', '.join(problems.values)}")
            if (count := int(file.get("limit") or 0)) and len(problems) != count:
                notes.append(f"{task}: the run has {len(problems):,} problems, the baseline's value is of {count:,}")
            rule = options.max_drop, options.confidence, problems.clusters
            judged[task] = verdicts.judge_fixed(name, found, value, *rule)
        checks.append(Check(name, options.max_drop, verdicts.correct(judged, (1 - options.confidence) / 2)))
        notes += run.notes
    return _report(options, checks, run, [], notes)


def _plan(options: argparse.Namespace, chosen: Run) -> int:
    if set(options.metric or [ACC]) != {ACC}:
        raise ArgumentError(f"--metric {' '.join(options.metric)}: --plan is of acc alone")
    design = Design(options.max_drop, options.confidence, options.samples)
    rows = plan(chosen, design, options.drop)
    if options.format == "json":
        sys.stdout.write(write_json({"rows": [asdict(row) for row in rows]}))
    else:
        sys.stdout.write(WRITERS[options.format](_lay_out_plan(rows, options.max_drop)))
    return 0


def _compare(options: argparse.Namespace, old: Run, new: Run) -> int:
    limits = _find_limits(options, old, new)
    notes = [*old.notes, *new.notes]
    old, new = align_runs(old, new, options.max_missing)
    allowed = check_settings(old, new, options.allow, f"--baseline '{options.baseline}'")
    checks = [Check(each, most, verdicts.compare(old, new, each, most, options.confidence)) for each, most in limits.items()]
    if options.max_changed is None:
        told = {task: verdicts.find_changed(old, new, task) for task in old.tasks}
        notes += [f"{task}: {changed.describe()}" for task, changed in told.items() if changed and changed.worse]
    else:
        changed = verdicts.judge_changed(old, new, options.max_changed, options.confidence)
        checks.append(Check(verdicts.CHANGED, options.max_changed, changed))
    return _report(options, checks, old, allowed, notes)


def _report(
    options: argparse.Namespace, checks: Sequence[Check], old: Run, allowed: Sequence[str], notes: Sequence[str]
) -> int:
    """Print the verdicts and write the files that were asked for. Returns the exit status."""
    for note in dict.fromkeys(notes):
        print(note, file=sys.stderr)
    judged = [each for check in checks for each in check.tasks.values()]
    if all(each.note == verdicts.SAME for each in judged):
        print("the run is the baseline's own: all texts and verdicts are the same, so nothing is tested", file=sys.stderr)
    verdict = next(name for name in ("regressed", "inconclusive", "pass") if name in {each.verdict for each in judged})
    failing = ("regressed", "inconclusive") if options.strict else ("regressed",)
    tables = _lay_out(verdict, checks, options.confidence, allowed)
    as_table, as_markdown = ("\n".join(map(WRITERS[form], tables)) for form in ("table", "md"))
    summary = f"### lm-eval-takeover regress: {verdict}\n\n{as_markdown}\n"
    if options.format == "json":
        sys.stdout.write(write_json(_describe(verdict, checks, old, options.confidence, allowed)))
    else:
        sys.stdout.write(summary if options.format == "md" else as_table)
    if options.junit:
        write_file("junit", options.junit, _write_junit(checks, failing))
    if step := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(step).open("a", encoding="utf-8") as stream:
                stream.write(summary)
        except OSError as error:
            raise ArgumentError(f"GITHUB_STEP_SUMMARY '{step}' cannot be written: {error.strerror}") from error
    return int(verdict in failing)


def _describe(verdict: str, checks: Sequence[Check], old: Run, confidence: float, allowed: Sequence[str]) -> dict[str, Any]:
    """The verdicts for `--format json`: `tasks` and `average` of the first metric, and of each below `metrics`."""
    metrics: dict[str, dict[str, Any]] = {}
    for check in checks:
        judged = {task: asdict(each) for task, each in check.tasks.items()}
        average = judged.pop(AVERAGE, None)
        metrics[check.metric] = {"tasks": judged, AVERAGE: average, "limit": check.limit}
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


def _lay_out(verdict: str, checks: Sequence[Check], confidence: float, allowed: Sequence[str]) -> list[Table]:
    figures = ["Verdict", "Baseline", "Now", "Change", f"{confidence:.0%} interval", "p (Holm)"]
    counted = ["Verdict", "Problems", "Changed", "Worse", "Better", "p (Holm)"]
    places = 3 if all(check.limit >= 0.01 for check in checks) else 4
    tables = []
    for check in checks:
        lines = []
        for task, judged in check.tasks.items():
            if (changed := judged.changed) is not None:
                counts = changed.answers, changed.worse + changed.better, changed.worse, changed.better
                shown = [f"{count:,}" for count in counts]
            else:
                change, low, high = (f"{value:+.{places}f}" for value in (judged.difference, judged.low, judged.high))
                shown = [f"{judged.baseline:.{places}f}", f"{judged.now:.{places}f}", change, f"{low} to {high}"]
            lines.append([task, judged.verdict, *shown, show_p(judged.p_holm)])
        columns = counted if check.metric == verdicts.CHANGED else figures
        tables.append(Table([check.metric if len(checks) > 1 else "Task", *columns], lines))
    return [*tables[:-1], replace(tables[-1], notes=_list_notes(verdict, checks, allowed))]


def _list_notes(verdict: str, checks: Sequence[Check], allowed: Sequence[str]) -> list[str]:
    kinds = {**dict.fromkeys(CHANGES, " change"), verdicts.CHANGED: ""}
    limits = [f"{check.metric}{kinds.get(check.metric, ' drop')} {check.limit:g}" for check in checks]
    notes = [f"{verdict}; allowed: {', '.join(limits)}"]
    for check in checks:
        of = f" ({check.metric})" if len(checks) > 1 else ""
        notes += [f"{task}{of}: {judged.note}" for task, judged in check.tasks.items() if judged.note]
    return notes + [f"setting that was allowed to differ: {line}" for line in allowed]


def _write_junit(checks: Sequence[Check], failing: Sequence[str]) -> str:
    """A test case by metric and task: those of a `failing` verdict fail, other inconclusive ones are skipped."""
    cases = [(task, judged, check.limit) for check in checks for task, judged in check.tasks.items()]
    suite = ElementTree.Element("testsuite", name="lm-eval-takeover regress", tests=str(len(cases)), errors="0")
    for task, judged, limit in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=for_terminal(task), name=judged.metric)
        span = f"{judged.difference:+.4f} ({judged.low:+.4f} to {judged.high:+.4f}), "
        more = f"{'; ' * bool(judged.note)}{judged.note}"
        text = for_terminal(f"{judged.verdict}: {span * (judged.changed is None)}limit {limit:g}{more}")
        if judged.verdict in failing:
            ElementTree.SubElement(case, "failure", message=text, type=judged.verdict)
        elif judged.verdict == "inconclusive":
            ElementTree.SubElement(case, "skipped", message=text)
    suite.set("failures", str(len(suite.findall("*/failure"))))
    suite.set("skipped", str(len(suite.findall("*/skipped"))))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _show_power(power: float | None) -> str:
    return "-" if power is None else f"{power:.1%}" if power < 0.1 else f"{power:.0%}"


def _lay_out_plan(rows: Sequence[Power], limit: float) -> Table:
    heading = ["Task", "Problems", "Samples", "Drop", "Power", "Whole", "Problems for 80 %"]
    table = []
    for row in rows:
        powers = map(_show_power, (row.power, row.power_whole))
        needed = f"{row.problems_for_80:,}" if row.problems_for_80 else "-"
        table.append([row.task, f"{row.problems:,}", str(row.samples), f"{row.drop:g}", *powers, needed])
    notes = [f"Power: the chance to find a drop beyond the allowed {limit:g}, if all problems get harder alike. Whole: if whole "
             "problems are lost."]  # fmt: skip
    if any(row.power is None for row in rows):
        notes.append("- for Power: there is no such drop, as Acc is below it (of the average: the Acc of one of its tasks).")
    if any(row.problems_for_80 is None and row.power is not None for row in rows):
        notes.append(f"- for Problems alone: more than {MOST_PROBLEMS:,}, as the drop is hardly larger than the allowed one.")
    if AVERAGE in {row.task for row in rows}:
        notes.append("Corrected over the tasks and their average, as regress does it where one of them drops.")
    return Table(heading, table, notes)


class _Metric(TypedDict):
    name: str  # with its filter: `exact_match,strict-match`
    value: schema.Share


class _Task(TypedDict):
    name: str
    metrics: list[_Metric]


class _File(TypedDict):
    model_name: str
    tasks: list[_Task]
    limit: NotRequired[float | None]
    num_fewshot: NotRequired[int | None]


def _read_fixed_values(path: Path, metrics: Sequence[str], tasks: Collection[str]) -> tuple[_File, dict[str, dict[str, float]]]:
    """A configuration, and its values by metric and task: only these if any are named. Raises ResultsError, ArgumentError."""
    try:
        content = yaml.safe_load(read_bounded(path))
        file: _File = schema.check(content, _File)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        raise ResultsError(f"--baseline '{path}': {reason}; expected a configuration of vLLM's lm-eval-harness") from None
    values: dict[str, dict[str, float]] = {}
    metric_names = {name for task in file["tasks"] for each in task["metrics"] for name in _list_names(each)}
    for option, given, held in (("tasks", tasks, {task["name"] for task in file["tasks"]}), ("metric", metrics, metric_names)):
        if unknown := [name for name in given if name not in held]:
            raise ArgumentError(f"--{option} '{unknown[0]}' has no value in '{path}'; {nearest(unknown[0], held)}")
    for task in file["tasks"]:
        for metric in task["metrics"]:
            names = _list_names(metric)
            if task["name"] in (tasks or [task["name"]]) and names.intersection(metrics or names):
                values.setdefault(metric["name"], {})[task["name"]] = metric["value"]
    if not values:
        known = [f"{task['name']}: {metric['name']}" for task in file["tasks"] for metric in task["metrics"]]
        raise ArgumentError(f"'{path}' has no value of these --tasks and --metric; it has {'; '.join(known)}")
    return file, values


def _list_names(metric: _Metric) -> set[str]:
    """What it is called: `acc`, its name, its name with its filter."""
    return {ACC, metric["name"], metric["name"].partition(",")[0]}

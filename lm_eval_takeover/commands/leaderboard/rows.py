"""The rows of the table, measured and published: their figures, averages, Recovery, and what differs between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lm_eval_takeover.commands.leaderboard import recoveries
from lm_eval_takeover.commands.leaderboard.naming import name_runs
from lm_eval_takeover.commands.leaderboard.versus import Contrast, compare_runs
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results import summary
from lm_eval_takeover.results.problems import ACC, ReadOptions
from lm_eval_takeover.results.published import Pair, PublishedRow
from lm_eval_takeover.results.runs import PREFIX, Run, TaskResult, read_runs
from lm_eval_takeover.results.settings import describe_varying
from lm_eval_takeover.runs.facts import find_missed_rate

MEASURED = "measured"
NOT_PRINTED = "not printed in the source, or lost there"
LOST = "(spike ratio lost in print)"  # the source has an empty bracket there


@dataclass(frozen=True)
class BoardRow:
    """A row of the table. `rates` are those of the whole run; `recovery` is by metric."""

    name: str
    kind: str
    source: str
    nominal: float | None
    rates: summary.Rates
    tasks: Mapping[str, summary.Summary]
    average: summary.Summary | None
    average_why: str | None  # why there is no average
    recovery: Mapping[str, summary.Figure]
    reference: str | None = None
    results: Path | None = None
    missed_rate: float | None = None  # the rate asked for, where the realized one is off
    contrasts: Sequence[Contrast] = ()


@dataclass(frozen=True)
class Board:
    """The table; `versus` is the name of the row that the others are compared with."""

    rows: Sequence[BoardRow]
    warnings: Sequence[str] = field(default_factory=list)
    versus: str | None = None


def build_board(
    results: Sequence[Path],
    thinking: Sequence[Path],
    versus: Path | None,
    labels: Mapping[Path, str] | None = None,
    reading: ReadOptions = ReadOptions(),
) -> Board:
    """Build the table of these results. `labels` name the rows of folders. Raises ResultsError, ArgumentError."""
    ours, notes = read_runs(results, reading)
    thinkers, more = read_runs(thinking, reading)
    sources = {run.source for run in thinkers}
    runs = [run for run in ours if run.source not in sources] + [replace(run, kind="thinking") for run in thinkers]
    named, more_differences = name_runs(runs, labels or {})
    if not named and (results or thinking):
        reasons = "; ".join([*notes, *more]) or "their rows are those of --thinking"
        paths = ", ".join(f"'{path}'" for path in [*results, *thinking])
        raise ArgumentError(f"nothing can be shown of {paths}: {reasons}")
    averaged = summary.choose_averaged(sorted({task for row in named for task in row.tasks}))
    rows = [_describe_row(row, named, averaged) for row in named]
    missed = [
        f"{row.name}: {row.missed_rate:.1%} of the tokens were to be taken over, and {row.rates.realized_rate:.1%} were"
        for row in rows
        if row.missed_rate is not None
    ]
    warnings = [
        *notes,
        *more,
        *more_differences,
        *missed,
        *recoveries.warn_of_references(named),
        *_list_warnings(named, averaged),
    ]
    unknown = [row.name for row in named if not row.takeover]
    if unknown and (len(named) > 1 or notes):
        warnings.append(
            f"{', '.join(unknown)}: these logs have no identity of ours, so they are matched by what their files say"
        )
    if versus is None:
        return Board(rows, warnings)
    reference, contrasts = compare_runs(named, averaged, versus, reading.max_missing)
    return Board([replace(row, contrasts=contrasts.get(row.name, ())) for row in rows], warnings, reference.name)


def _describe_row(run: Run, rows: Sequence[Run], averaged: Sequence[str]) -> BoardRow:
    tasks = summary.summarize_tasks([run])
    missing = [task for task in averaged if task not in tasks]
    reference = recoveries.find_reference(run, rows)
    return BoardRow(
        run.name,
        run.kind,
        MEASURED,
        summary.find_nominal_rate(run.takeover),
        summary.measure_rates(run),
        tasks,
        None if missing else summary.average([tasks[task] for task in averaged]),
        f"without {', '.join(missing)}" if missing else None,
        recoveries.measure_recoveries(run, recoveries.find_member(run, rows, "base"), reference, averaged),
        reference.name if reference else None,
        run.source,
        find_missed_rate(run.takeover, run.counts.realized_rate),
    )


def _list_warnings(rows: Sequence[Run], averaged: Sequence[str]) -> list[str]:
    """List what differs between rows, and what cannot be computed without samples. Tasks share a line if they can."""
    tasks_of: dict[str, list[str]] = {}
    for task in dict.fromkeys([*averaged, *(task for row in rows for task in row.tasks)]):
        for line in _list_task_warnings({row.name: row.tasks[task] for row in rows if task in row.tasks}):
            tasks_of.setdefault(line, []).append(task.removeprefix(PREFIX))
    lines = [f"{line} ({', '.join(tasks)})" for line, tasks in tasks_of.items()]
    versions = {row.name: row.versions for row in rows}
    return lines + [f"rows differ in the version of {line}" for line in describe_varying(versions)]


def _list_task_warnings(having: dict[str, TaskResult]) -> list[str]:
    """List the warnings on one task, given by row name."""
    settings = {row: of.settings | {"problems": of.count, "verifier": of.verifier} for row, of in having.items()}
    lines = [f"rows differ in {line}" for line in describe_varying(settings)]
    sets = {frozenset(result.problems.ids) for result in having.values() if result.problems}
    if len(sets) > 1 and len({result.count for result in having.values()}) == 1:
        lines.append("rows have the same number of problems, but not the same problems")
    if without := [name for name, result in having.items() if result.problems is None]:
        lines.append(
            f"no samples of {', '.join(without)}, so no intervals, no comparisons, and Recovery without interval; run with "
            "--log_samples"
        )
    return lines


def describe_published(row: PublishedRow) -> BoardRow:
    """A row of the paper's tables of results."""
    printed = row.average != (None, None)
    return BoardRow(
        row.model.replace("()", LOST),
        row.kind,
        f"published, Table {row.table}",
        row.nominal,
        summary.Rates(),
        {task: summary.Summary(_name_pair(pair), summary.Rates(), None, None, 8) for task, pair in row.tasks.items()},
        summary.Summary(_name_pair(row.average), summary.Rates(), None, None, 8) if printed else None,
        None if printed else NOT_PRINTED,
        _name_pair(row.recovery, NOT_PRINTED),
    )


def _name_pair(pair: Pair, why: str | None = None) -> dict[str, summary.Figure]:
    """Acc and Pass@8 without intervals, which the paper does not print."""
    acc, passed = (summary.Figure(value, why=why if value is None else None) for value in pair)
    return {ACC: acc, "pass@8": passed}

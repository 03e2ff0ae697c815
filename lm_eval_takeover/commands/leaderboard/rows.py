"""The rows of the table, measured and published: their figures, averages, Recovery, and what differs between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lm_eval_takeover.commands.leaderboard.naming import NamedRun, name_runs
from lm_eval_takeover.commands.leaderboard.recoveries import (
    find_base,
    find_reference,
    measure_recoveries,
    warn_of_references,
)
from lm_eval_takeover.commands.leaderboard.versus import Contrast, compare_runs
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.problems import Reading
from lm_eval_takeover.results.published import Pair, PublishedRow, read_published_rows
from lm_eval_takeover.results.runs import PREFIX, TaskResult, read_runs
from lm_eval_takeover.results.scorers import gather_scorers, list_scorer_notes
from lm_eval_takeover.results.settings import describe_varying
from lm_eval_takeover.results.summary import (
    Figure,
    Rates,
    Summary,
    average,
    choose_averaged,
    find_nominal_rate,
    measure_rates,
    summarize_tasks,
)
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
    rates: Rates
    tasks: Mapping[str, Summary]
    average: Summary | None
    average_why: str | None  # why there is no average
    recovery: Mapping[str, Figure]
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
    legend: Sequence[str] = ()  # what else tells apart rows whose names say only a part of it


def build_board(
    results: Sequence[Path],
    thinking: Sequence[Path],
    versus: Path | None,
    labels: Mapping[Path, str] | None = None,
    reading: Reading = Reading(),
    scorers: bool = False,
) -> Board:
    """Build the table of these results. `labels` name the rows of folders. Raises ResultsError, ArgumentError."""
    ours, notes = read_runs(results, reading)
    thinkers, more = read_runs(thinking, reading)
    ours, thinkers = (gather_scorers(runs, reading) if scorers else runs for runs in (ours, thinkers))
    sources = {run.source for run in thinkers}
    runs = [(run, run.kind) for run in ours if run.source not in sources] + [(run, "thinking") for run in thinkers]
    named, legend = name_runs(runs, labels or {})
    if not named and (results or thinking):
        reasons = "; ".join([*notes, *more]) or "their rows are those of --thinking"
        given = ", ".join(f"'{path}'" for path in [*results, *thinking])
        raise ArgumentError(f"nothing can be shown of {given}: {reasons}")
    averaged = choose_averaged(sorted({task for row in named for task in row.run.tasks}))
    rows = [_describe_row(row, named, averaged) for row in named]
    warnings = [*notes, *more, *_list_missed_rates(rows), *warn_of_references(named)]
    warnings += list_scorer_notes({row.name: row.run for row in named}) if scorers else []
    board = Board(rows, [*warnings, *_list_warnings(named, averaged)], legend=legend)
    if versus is None:
        return board
    reference, contrasts = compare_runs(named, averaged, versus, reading.max_missing)
    rows = [replace(row, contrasts=contrasts.get(row.name, ())) for row in rows]
    return replace(board, rows=rows, versus=reference.name)


def _describe_row(row: NamedRun, rows: Sequence[NamedRun], averaged: Sequence[str]) -> BoardRow:
    run = row.run
    tasks = summarize_tasks([run])
    missing = [task for task in averaged if task not in tasks]
    reference = find_reference(row, rows)
    return BoardRow(
        row.name,
        row.kind,
        MEASURED,
        find_nominal_rate(run.takeover),
        measure_rates(run),
        tasks,
        None if missing else average([tasks[task] for task in averaged]),
        f"without {', '.join(missing)}" if missing else None,
        measure_recoveries(row, find_base(row, rows), reference, averaged),
        reference.name if reference else None,
        run.source,
        find_missed_rate(run.takeover, run.counts.realized_rate),
    )


def _list_missed_rates(rows: Sequence[BoardRow]) -> list[str]:
    return [
        f"{row.name}: {row.missed_rate:.1%} of the tokens were to be taken over, and {row.rates.realized_rate:.1%} were"
        for row in rows
        if row.missed_rate is not None
    ]


def _list_warnings(rows: Sequence[NamedRun], averaged: Sequence[str]) -> list[str]:
    """List what differs between rows, and what cannot be computed without samples. Tasks share a line if they can."""
    tasks_of: dict[str, list[str]] = {}
    for task in dict.fromkeys([*averaged, *(task for row in rows for task in row.run.tasks)]):
        for line in _list_task_warnings({row.name: row.run.tasks[task] for row in rows if task in row.run.tasks}):
            tasks_of.setdefault(line, []).append(task.removeprefix(PREFIX))
    lines = [f"{line} ({', '.join(tasks)})" for line, tasks in tasks_of.items()]
    versions = {row.name: row.run.versions for row in rows}
    return lines + [f"rows differ in the version of {line}" for line in describe_varying(versions)]


def _list_task_warnings(having: dict[str, TaskResult]) -> list[str]:
    """List the warnings on one task, given by row name."""
    settings = {
        name: result.settings | {"problems": result.count, "verifier": result.verifier}
        for name, result in having.items()
    }
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


def list_published_rows() -> list[BoardRow]:
    """The rows of the paper's tables of results, in its order."""
    return [_describe_published(row) for row in read_published_rows()]


def _describe_published(row: PublishedRow) -> BoardRow:
    printed = row.average != (None, None)
    return BoardRow(
        row.model.replace("()", LOST),
        row.kind,
        f"published, Table {row.table}",
        row.nominal,
        Rates(),
        {task: _summarize_printed(pair) for task, pair in row.tasks.items()},
        _summarize_printed(row.average) if printed else None,
        None if printed else NOT_PRINTED,
        _name_pair(row.recovery, NOT_PRINTED),
    )


def _summarize_printed(pair: Pair) -> Summary:
    return Summary(_name_pair(pair), Rates(), None, None, 8)


def _name_pair(pair: Pair, why: str | None = None) -> dict[str, Figure]:
    """Acc and Pass@8 without intervals, which the paper does not print."""
    names = ("acc", "pass@8")
    return {name: Figure(value, why=why if value is None else None) for name, value in zip(names, pair, strict=True)}

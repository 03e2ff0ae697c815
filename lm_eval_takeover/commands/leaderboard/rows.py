"""The rows of the table, measured and published: names, figures, averages, Recovery, and what differs between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lm_eval_takeover.commands.leaderboard.contrasts import (
    Contrast,
    compare_runs,
    find_member,
    find_reference,
    measure_recoveries,
    warn_of_references,
)
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results import summary
from lm_eval_takeover.results.files import PAIRS, PREFIX, Run, TaskResult, file_date, read_runs
from lm_eval_takeover.results.problems import ACC, ReadOptions
from lm_eval_takeover.results.published import Pair, PublishedRow
from lm_eval_takeover.results.settings import describe_varying
from lm_eval_takeover.runs.facts import find_missed_rate

MEASURED = "measured"
NOT_PRINTED = "not printed in the source, or lost there"
LOST = "(spike ratio lost in print)"  # the source has an empty bracket there
_ORDER = ("base", "guided", "random", "early", "thinking", "guide", "other")
_FIRST = ("rate", "seed", "chat_template", "base", "guide")  # what a name says before all else
_LAST = ("scorer", "score_top_p", "tau", "kappa")  # said where nothing else tells runs apart; the nominal rate is for these


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
    labels: Mapping[Path, str] = {},
    reading: ReadOptions = ReadOptions(),
) -> Board:
    """Build the table of these results. `labels` name the rows of folders. Raises ResultsError, ArgumentError."""
    ours, notes = read_runs(results, reading)
    thinkers, more = read_runs(thinking, reading)
    sources = {run.source for run in thinkers}
    runs = [run for run in ours if run.source not in sources] + [replace(run, kind="thinking") for run in thinkers]
    named, more_differences = _name_runs(runs, labels)
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
        *warn_of_references(named),
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
    reference = find_reference(run, rows)
    return BoardRow(
        run.name,
        run.kind,
        MEASURED,
        summary.find_nominal_rate(run.takeover),
        summary.measure_rates(run),
        tasks,
        None if missing else summary.average([tasks[task] for task in averaged]),
        f"without {', '.join(missing)}" if missing else None,
        measure_recoveries(run, find_member(run, rows, "base"), reference, averaged),
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


# Names: the label, else model and method. Equal names get what tells the runs apart.


def _name_runs(runs: Sequence[Run], labels: Mapping[Path, str]) -> tuple[list[Run], list[str]]:
    """Order the runs as in Table 3 (by base, kind and rate) and name them. Returns also lines on what names leave out.

    `labels` are the names of all runs in a folder.
    """

    def place(run: Run) -> tuple[Any, ...]:
        family = str(run.settings.get("base")) if run.kind in ("base", *PAIRS) else "~"
        return family, _ORDER.index(run.kind), run.counts.realized_rate or 0, run.model, str(run.source)

    by_folder = {folder.resolve(): label for folder, label in labels.items()}
    rows = [replace(run, name=_name(run, by_folder)) for run in sorted(runs, key=place)]
    names = [row.name for row in rows]
    lines = []
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            equal = [i for i, row in enumerate(rows) if row.name == name]
            for i, (words, more) in zip(equal, _tell_apart([rows[i] for i in equal]), strict=True):
                rows[i] = replace(rows[i], name=f"{name} ({words})")
                lines += [f"{rows[i].name}: {more}"] if more else []
    return rows, lines


def _name(run: Run, by_folder: Mapping[Path, str]) -> str:
    label = next((by_folder[parent] for parent in run.source.parents if parent in by_folder), run.given_label)
    verifiers = sorted({result.verifier for result in run.tasks.values()} - {"takeover"})
    return ", ".join([label or _name_method(run), *verifiers])


def _name_method(run: Run) -> str:
    takeover, kind = run.takeover, run.kind
    if kind in ("guide", "thinking"):
        return f"{run.model} ({kind})"
    if kind in ("random", "early"):
        return f"{run.model} + {kind.capitalize()}"
    if kind != "guided":
        return run.model
    if takeover.get("policy") not in ("disagreement", "entropy"):  # another paper's, or a plug-in's
        return f"{run.model} + {str(takeover.get('policy')).capitalize()}"
    parts = [str(takeover.get("score"))] if takeover.get("score") != "ce" else []
    parts += ["reverse"] if takeover.get("direction") == "reverse" else []
    return " ".join([run.model, "+ Guided", *([f"({', '.join(parts)})"] if parts else [])])


def _tell_apart(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Of each run as many differences as tell all of them apart, else the date; and the other differences."""
    shared = set.intersection(*(set(run.tasks) for run in runs))
    settings = [_list_settings(run, sorted(shared)) for run in runs]
    names = sorted({name for each in settings for name in each if name not in _FIRST}, key=lambda name: (name in _LAST, name))
    varying = [name for name in (*_FIRST, *names) if len({each.get(name, "none") for each in settings}) > 1]
    described = [[f"{name} {each.get(name, 'none')}" for name in varying] for each in settings]
    for count in range(1, len(varying) + 1):
        words = [", ".join(each[:count]) for each in described]
        if len(set(words)) == len(runs):
            left = [place for place in range(count, len(varying)) if varying[place] not in _LAST]
            return [(word, ", ".join(each[place] for place in left)) for word, each in zip(words, described, strict=True)]
    return [(f"results of {file_date(run.source)}", ", ".join(each)) for run, each in zip(runs, described, strict=True)]


def _list_settings(run: Run, tasks: Sequence[str]) -> dict[str, str]:
    """The settings of a run on these tasks, by short names, to tell it from others."""
    nominal = summary.find_nominal_rate(run.takeover)
    values = {"rate": "none" if nominal is None else f"{nominal:.3g}", "seed": str(run.seed)}
    for task in tasks:
        values |= {name: _shorten(name, value) for name, value in run.tasks[task].settings.items()}
    kept = {name: value for name, value in run.settings.items() if name != "rate"}
    return values | {name.removeprefix("model_args."): _shorten(name, value) for name, value in kept.items()}


def _shorten(name: str, value: Any) -> str:
    if name == "chat_template":
        return "off" if value is None else f"on ({str(value)[:6]})"
    text = "none" if value is None else str(value).replace("\n", " ")
    if name in ("base", "guide"):
        text = text.rpartition("/")[2]
    return text if len(text) <= 30 else f"{text[:27]}..."


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

"""The measured rows of the table: names, figures, averages, Recovery, and what differs between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import realpath
from pathlib import Path
from typing import Any

from lm_eval_takeover.commands.leaderboard.contrasts import Contrast, find_members, measure_recoveries, subtract_row
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.named import THINKING
from lm_eval_takeover.results import summary
from lm_eval_takeover.results.documents import describe_varying
from lm_eval_takeover.results.files import PAIRS, PREFIX, Run, TaskResult, file_date, read_runs
from lm_eval_takeover.results.kept_rows import DRAFTED, ComparedRow, find_row_results, list_kept_rows
from lm_eval_takeover.results.problems import ReadOptions
from lm_eval_takeover.results.ruler import describe_bend
from lm_eval_takeover.runs.identity import find_missed_rate

MEASURED = "measured"
_ORDER = ("base", "guided", "random", "early", "thinking", "guide", "other")
_FIRST = ("model", "rate", "seed", "chat_template", "base", "guide")  # what a name says before all else
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
    results: Sequence[Path], thinking: Sequence[Path], versus: Path | None, reading: ReadOptions = ReadOptions()
) -> Board:
    """Rows of a folder of `compare` have its names, its order and its reference. Raises ResultsError, ArgumentError."""
    places = _find_places([*results, *thinking])
    ours, notes = read_runs([path for given in results for path in _open_comparison(given, places)], reading)
    thinkers, more = read_runs(thinking, reading)
    sources = {run.source for run in thinkers}
    runs = [run for run in ours if run.source not in sources] + [replace(run, kind="thinking") for run in thinkers]
    named = name_runs(runs, places)
    if not named and (results or thinking):
        reasons = "; ".join([*notes, *more]) or "their rows are those of --thinking"
        paths = ", ".join(f"'{path}'" for path in [*results, *thinking])
        raise ArgumentError(f"nothing can be shown of {paths}: {reasons}")
    averaged = summary.choose_averaged(sorted({task for row in named for task in row.tasks}))
    rows = [_describe_row(row, named, averaged) for row in named]
    missed = [
        f"{row.name}: a rate of {row.missed_rate:.1%} was asked for, and {row.rates.realized_rate:.1%} was realized"
        for row in rows
        if row.missed_rate is not None
    ]
    bend = describe_bend({row.name: _read_shares(row.average) for row in rows})
    warnings = [*notes, *more, *missed, *([bend] if bend else []), *_list_warnings(named, averaged)]
    unknown = [row.name for row in named if not row.takeover]
    if unknown and (len(named) > 1 or notes):
        why = "other model types record no digest of a run, so runs were told apart by the settings that their files state"
        warnings.append(f"{', '.join(unknown)}: {why}")
    if versus is None:
        return Board(rows, warnings)
    reference, contrasts = subtract_row(named, averaged, versus, reading.max_missing)
    return Board([replace(row, contrasts=contrasts.get(row.name, ())) for row in rows], warnings, reference.name)


def _find_places(paths: Sequence[Path]) -> dict[Path, ComparedRow]:
    """By their folders the rows of `compare` that lie in these paths, or around them."""
    places: dict[Path, ComparedRow] = {}
    for path in map(Path, map(realpath, paths)):
        for folder in (path, *path.parents[:3]):
            rows = list_kept_rows(folder) if folder == path or (folder / "leaderboard.json").is_file() else []
            if folder == path and "guide" in {row.name for row in rows}:
                rows = [row for row in rows if row.name != DRAFTED]  # which has the text of `guide`
            for row in rows:
                places.setdefault(folder / row.label, row)
    return places


def _open_comparison(path: Path, places: Mapping[Path, ComparedRow]) -> list[Path]:
    """In a folder of `compare` the results of its rows, and what `rescore` wrote of them; any other path as it is."""
    inside = [row for place, row in places.items() if place.parent == Path(realpath(path))]
    return [file for row in inside for file in find_row_results(path, row)] or [path]


def _describe_row(run: Run, rows: Sequence[Run], averaged: Sequence[str]) -> BoardRow:
    """A row among all rows. Base and reference of a row of `compare` are of its folder, or of no other one."""
    folder = run.comparison
    base, reference, guide = find_members(run, [row for row in rows if folder is None or row.comparison in (None, folder)])
    tasks = summary.summarize_tasks(run, guide)
    missing = [task for task in averaged if task not in tasks]
    return BoardRow(
        run.name,
        run.kind,
        MEASURED,
        summary.find_nominal_rate(run.takeover),
        summary.Rates.of(run, run.counts),
        tasks,
        None if missing else summary.average([tasks[task] for task in averaged]),
        f"without {', '.join(missing)}" if missing else None,
        measure_recoveries(run, base, reference, averaged),
        reference.name if reference else None,
        run.source,
        find_missed_rate(run.takeover, run.counts.realized_rate),
    )


def _read_shares(average: summary.Summary | None) -> dict[str, float]:
    shares = {} if average is None else {"acc": average.acc.value, **vars(average.rates)}
    return {name: share for name, share in shares.items() if share is not None}


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
    settings = {row: of.settings | {"problems": of.count, "verifier": of.verifier} for row, of in having.items()}
    lines = [f"rows differ in {line}" for line in describe_varying(settings)]
    sets = {frozenset(result.problems.ids) for result in having.values() if result.problems}
    if len(sets) > 1 and len({result.count for result in having.values()}) == 1:
        lines.append("rows have the same number of problems, but not the same problems")
    if without := [name for name, result in having.items() if not result.problems]:
        lines.append(
            f"no samples of {', '.join(without)}, so no intervals, no comparisons, and Recovery without interval; run with "
            "--log_samples"
        )
    return lines


def name_runs(runs: Sequence[Run], places: Mapping[Path, ComparedRow]) -> list[Run]:
    """Order the runs and name them. The order is that of `compare`, else of Table 3.

    given                        name
    a row of `compare`, `model=` its label
    base alone, another model    MODEL
    guide alone, `--thinking`    MODEL (guide), MODEL (thinking)
    a gate on `ce`; another one  MODEL + Guided; MODEL + Guided (js, reverse)
    another policy               MODEL + Random
    verdicts of math_verify      NAME, math_verify
    several runs of one name     NAME (rate 0.02), NAME (seed 1, tau 3.0): the settings that tell them apart, else dates
    """
    by_run = {run.source: next((folder for folder in run.source.parents if folder in places), None) for run in runs}

    def order(run: Run) -> tuple[Any, ...]:
        if (place := by_run[run.source]) is not None:
            return 0, [*places].index(place), str(run.source)
        family = str(run.settings.get("base")) if run.kind in ("base", *PAIRS) else "~"
        return 1, family, _ORDER.index(run.kind), run.counts.realized_rate or 0, run.model, str(run.source)

    rows = []
    for run in sorted(runs, key=order):
        place = by_run[run.source]
        kind = "thinking" if place and places[place].name == THINKING else run.kind
        verifiers = sorted({result.verifier for result in run.tasks.values()} - {"takeover"})
        label = places[place].label if place else run.given_label or _name_method(run)
        rows.append(replace(run, kind=kind, name=", ".join([label, *verifiers]), comparison=place and place.parent))
    names = [row.name for row in rows]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            equal = [i for i, row in enumerate(rows) if row.name == name]
            for i, words in zip(equal, _tell_apart([rows[i] for i in equal]), strict=True):
                rows[i] = replace(rows[i], name=f"{name} ({words})")
    return rows


def _name_method(run: Run) -> str:
    takeover, kind = run.takeover, run.kind
    if kind in ("guide", "thinking"):
        return f"{run.model} ({kind})"
    if kind in ("base", "other"):
        return run.model
    if (policy := str(takeover.get("policy"))) not in ("disagreement", "entropy"):
        return f"{run.model} + {policy.capitalize()}"
    parts = [str(takeover.get("score"))] if takeover.get("score") != "ce" else []
    parts += ["reverse"] if takeover.get("direction") == "reverse" else []
    return " ".join([run.model, "+ Guided", *([f"({', '.join(parts)})"] if parts else [])])


def _tell_apart(runs: Sequence[Run]) -> list[str]:
    """Of each run as many differences as tell all of them apart, else the date."""
    shared = set.intersection(*(set(run.tasks) for run in runs))
    settings = [_list_settings(run, sorted(shared)) for run in runs]
    names = sorted({name for each in settings for name in each if name not in _FIRST}, key=lambda name: (name in _LAST, name))
    varying = [name for name in (*_FIRST, *names) if len({each.get(name, "none") for each in settings}) > 1]
    for count in range(1, len(varying) + 1):
        words = [", ".join(f"{name} {each.get(name, 'none')}" for name in varying[:count]) for each in settings]
        if len(set(words)) == len(runs):
            return words
    return [f"results of {file_date(run.source)}" for run in runs]


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
    text = "none" if value is None else f"{value:g}" if name == "limit" else str(value).replace("\n", " ")
    if name in ("base", "guide"):
        text = text.rpartition("/")[2]
    return text if len(text) <= 30 else f"{text[:27]}..."

"""Writes the table for a terminal, and as Markdown, CSV, LaTeX and JSON."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lm_eval_takeover.commands._output import WRITERS, Table, show_figure, show_p, show_span, write_csv, write_json
from lm_eval_takeover.commands.leaderboard.contrasts import AVERAGE, BOXED
from lm_eval_takeover.commands.leaderboard.rows import MEASURED, Board, BoardRow
from lm_eval_takeover.results.files import MATHEMATICAL, PAIRS, PREFIX
from lm_eval_takeover.results.problems import ACC
from lm_eval_takeover.results.summary import TOO_WIDE, Figure, Summary

# Column names of the paper, for published rows; behind them stands what a task file adds: `takeover_gsm8k_100` is GSM8K (100).
_HEADINGS = {
    "math500": "Math500", "gsm8k": "GSM8K", "olympiadbench": "Olympiad", "hmmt_feb26": "HMMT26", "hmmt_nov25": "HMMT Nov 25",
    "gpqa_diamond": "GPQA", "demo": "Demo",
} | {name: name.upper() for name in ("amc23", "aime24", "aime25", "aime26", "brumo25", "apex25")}  # fmt: skip
_TASK = re.compile(f"{PREFIX}({'|'.join(_HEADINGS)})(?:_(.+))?")
# Rates of a cell that `--columns` adds, and what they are called.
_PARTS = {
    "truncated": {"truncated": "with truncated"},
    "task_rate": {"realized_rate": "realized rate"},
    "reading": {"acc_boxed": "Acc of boxes alone", "unboxed": "read without a box", "no_answer": "no answer"},
}
# Rates of the whole run that `--columns cost` adds.
_COSTS = {
    "guide_passes_per_token": "Guide passes / token",
    "weights_per_token": "Weights / token",
    "seconds_per_problem": "s / problem",
}
MISSED = "† off the rate that was asked for."
_WIDE = "‡"
# A figure of a cell: what it is, the figure, and its interval or nothing.
Part = tuple[str, str, str]
_RUN_RATES = ("base_passes_per_token", *_COSTS)  # in JSON and CSV
_CELL_RATES = {"truncated": "truncated", "realized_rate": "task_rate"}
_CELL_RATES |= {name: name for name in (*_PARTS["reading"], "unparsed", "same_as_guide")}


def write_table(board: Board, format_name: str, extras: Sequence[str] = ()) -> str:
    if format_name == "json":
        return write_json(describe_board(board))
    if format_name == "csv":
        return _write_csv(board)
    versus, write = _lay_out_versus(board), WRITERS[format_name]
    return write(_lay_out(board, extras, _spread if format_name == "latex" else _join)) + (
        f"\n{write(versus)}" if versus else ""
    )


# JSON and CSV: shares from 0 to 1, null or empty where there is none.


def describe_board(board: Board) -> dict[str, Any]:
    """`rows` and `warnings`, as `--format json` prints them."""
    return {"rows": [_describe_row(row, board.versus) for row in board.rows], "warnings": list(board.warnings)}


def _describe_row(row: BoardRow, versus: str | None) -> dict[str, Any]:
    recovery: dict[str, Any] = {}
    for metric, figure in row.recovery.items():
        recovery |= figure.describe(_field(metric)) | ({f"{_field(metric)}_why": figure.why} if figure.why else {})
    contrasts: dict[str, dict[str, Any]] = {}
    for contrast in row.contrasts:
        figure = contrast.figure
        figures = {"difference": figure.value, "low": figure.low, "high": figure.high, "p_value": contrast.p_value}
        more = {"why": figure.why} if figure.why else {"p_holm": contrast.p_holm, "how": contrast.how}
        contrasts.setdefault(_field(contrast.metric), {})[contrast.task] = figures | more
    return {
        **_name_row(row),
        "tasks": {task: _describe_cell(cell) for task, cell in row.tasks.items()},
        "average": _describe_cell(row.average) if row.average else None,
        **({"average_why": row.average_why} if row.average_why else {}),
        "recovery": recovery,
        "cost": {name: getattr(row.rates, name) for name in _RUN_RATES},
        **({"results": str(row.results)} if row.results else {}),
        **({"vs": {"model": versus, **contrasts}} if contrasts else {}),
    }


def _name_row(row: BoardRow) -> dict[str, Any]:
    named = {name: getattr(row, name) for name in ("kind", "source", "nominal")}
    rates = {"realized_rate": row.rates.realized_rate, "missed_rate": row.missed_rate}
    return {"model": row.name, **named, **rates, "reference": row.reference}


def _describe_cell(cell: Summary) -> dict[str, Any]:
    """Describe a cell. Pass@8 and Maj@8 are always there; `k` is that of tables."""
    described: dict[str, Any] = {"k": cell.k}
    for metric in dict.fromkeys([ACC, "pass@8", "maj@8", *cell.scores]):
        described |= cell.score(metric).describe(_field(metric))
    described |= {"metric": cell.accuracy} if cell.accuracy != ACC else {}
    described |= {field: getattr(cell.rates, name) for name, field in _CELL_RATES.items()}
    return described | {"problems": cell.problems, "samples": cell.samples}


def _field(metric: str) -> str:
    """The name of a metric in files: `pass8` for `pass@8`."""
    return metric.replace("@", "")


def _write_csv(board: Board) -> str:
    """Write a line per row and task, and one for `average`. A comparison is `vs_acc_difference` and so on."""
    lines = []
    for row in board.rows:
        described = _describe_row(row, board.versus)
        versus = described.pop("vs", {})
        shared = _name_row(row) | described["cost"] | ({"vs": versus.pop("model")} if versus else {})
        for task, cell in [*described["tasks"].items(), (AVERAGE, described["average"] or {})]:
            recovery = {f"recovery_{name}": value for name, value in described["recovery"].items()}
            own = recovery if task == AVERAGE else {}
            for metric, by_task in versus.items():
                own |= {f"vs_{metric}_{name}": value for name, value in by_task.get(task, {}).items()}
            lines.append(shared | {"task": task} | cell | own)
    names = dict.fromkeys(name for line in lines for name in line)
    columns = [name for name in names if name not in ("k", "metric") and not name.endswith("_why")]
    return write_csv(columns, [{name: line.get(name) for name in columns} for line in lines])


# Tables for people: shares in per cent.


Cells = tuple[str, list[list[Part]]]  # a heading and, by row, the figures below it


def _lay_out(board: Board, extras: Sequence[str], write: Callable[[Cells], Iterable[tuple[str, list[str]]]]) -> Table:
    """Model, rate, Acc and Pass@k by task, the average of several tasks, Recovery; then what was asked for."""
    rows = board.rows
    shown = dict.fromkeys(_heading(task) for row in rows for task in row.tasks)
    headings = list(dict.fromkeys([*(each for each in map(_heading, MATHEMATICAL) if each in shown), *shown]))
    published = any(row.source != MEASURED for row in rows)
    named = [{_heading(task): cell for task, cell in row.tasks.items()} for row in rows]
    cells = {heading: [each.get(heading) for each in named] for heading in headings}
    if len(headings) != 1 or published:
        cells["Average"] = [row.average for row in rows]
    scored = [(heading, [_list_scores(cell, extras) for cell in column]) for heading, column in cells.items()]
    scored.append(("Recovery", [_list_recoveries(row, extras) for row in rows]))
    columns = [("Model", [row.name for row in rows]), ("Rate", [_show_rate(row) for row in rows])]
    columns += [column for each in scored for column in write(each)]
    if "same_as_guide" in extras:
        same = [show_figure(row.average.rates.same_as_guide if row.average else None, ".1%") for row in rows]
        columns.append(("Same as guide", same))
    for name, heading in _COSTS.items() if "cost" in extras else ():
        columns.append((heading, [_show_cost(getattr(row.rates, name)) for row in rows]))
    for heading, column in cells.items():
        more = [_list_more(cell, extras) for cell in column]
        for label in dict.fromkeys(label for each in more for label in each):
            columns.append((f"{heading} {label}", [each.get(label, "") for each in more]))
    if "reading" in extras:
        boxed = [show_figure(row.recovery.get(BOXED, Figure()).value, "z.0%") for row in rows]
        columns.append(("Recovery of boxes alone", boxed))
    if published:
        columns.append(("Source", [row.source.removeprefix("published, ") for row in rows]))
    lines = [list(line) for line in zip(*(texts for _, texts in columns), strict=True)]
    return Table([heading for heading, _ in columns], lines, _list_notes(board, extras))


def _join(cells: Cells) -> Iterator[tuple[str, list[str]]]:
    """One column, with a cell's figures and their intervals side by side."""
    texts = []
    for parts in cells[1]:
        shown = [f"{figure or '-'} ({span})" if span else figure or "-" for _, figure, span in parts]
        texts.append(" / ".join(shown) if any(figure for _, figure, _ in parts) else "")
    yield cells[0], texts


def _spread(cells: Cells) -> Iterator[tuple[str, list[str]]]:
    """A column for each figure, and one for its interval where a row has one."""
    for label in dict.fromkeys(label for parts in cells[1] for label, *_ in parts):
        found = [next((part for part in parts if part[0] == label), ("", "", "")) for parts in cells[1]]
        yield f"{cells[0]} {label}".strip(), [figure for _, figure, _ in found]
        yield "95 %", [span for *_, span in found]


def _list_notes(board: Board, extras: Sequence[str]) -> list[str]:
    rows = board.rows
    has_intervals = "intervals" in extras
    intervals = "Intervals are 95 %, over problems." if has_intervals else "`--columns intervals` adds intervals."
    ks = {cell.k for row in rows for cell in row.tasks.values()}
    k = ks.pop() if len(ks) == 1 else 8
    look = "A good row has the guide's Acc at a small Rate. " * any(row.kind in PAIRS for row in rows)
    notes = [f"{_name_scores(k)}, in %. {look}{intervals}{_name_sizes(rows)}", *_list_other_scores(rows, k)]
    if "truncated" in extras:
        notes.append("With truncated: Acc, and what it would be if all answers that the token limit cut off were correct.")
    notes += [f"Recovery is measured against {name}." for name in _unique(row.reference for row in rows)]
    guides = [row.average.rates.same_as_guide for row in rows if row.kind == "guide" and row.average]
    if "same_as_guide" in extras and guides == [None]:
        notes.append("No column Same as guide: two samples of the guide never have the same text, or there is one a problem.")
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.source == MEASURED and row.kind in PAIRS:
            for metric, label in _list_measures(row.average):
                if (figure := row.recovery.get(metric)) and figure.why not in (None, TOO_WIDE):
                    why = figure.why if figure.value is not None else f"no Recovery: {figure.why}"
                    reasons.setdefault(why, []).append(f"{row.name} ({label})")
        if row.average_why:
            reasons.setdefault(f"no average: {row.average_why}", []).append(row.name)
    notes += [f"{', '.join(_unique(models))}: {why}." for why, models in reasons.items()]
    wide = any(figure.why == TOO_WIDE for row in rows for figure in row.recovery.values())
    notes += [f"{_WIDE} {TOO_WIDE}."] if wide else []
    notes += [MISSED] if any(row.missed_rate is not None for row in rows) else []
    return notes + [f"Warning: {line}" for line in board.warnings]


def _unique(names: Iterable[str | None]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name]


def _name_scores(k: int | None) -> str:
    return f"Acc / Pass@{k}" if k and k > 1 else "Acc"


def _list_other_scores(rows: Sequence[BoardRow], usual: int | None) -> list[str]:
    """A line on each task whose cells are of another Pass@k than the usual one, or whose accuracy has another name."""
    lines = []
    for row in rows:
        for task, cell in row.tasks.items():
            if cell.accuracy != ACC:
                lines.append(f"{_heading(task)}: Acc is its {cell.accuracy}.")
            if cell.k != usual:
                lines.append(f"{_heading(task)}: {_name_scores(cell.k)}.")
        if row.average and row.average.k not in (None, 1, usual):
            lines.append(f"Average and Recovery: {_name_scores(row.average.k)}.")
    return _unique(lines)


def _name_sizes(rows: Sequence[BoardRow]) -> str:
    """How many problems and samples each measured task has; the rows of one task may differ."""
    sizes = [
        f"{_heading(task)}: {cell.problems:,} problem{'s' * (cell.problems != 1)} x "
        f"{cell.samples or '?'} sample{'s' * (cell.samples != 1)}"
        for row in rows
        for task, cell in row.tasks.items()
        if cell.problems
    ]
    return f" {'; '.join(_unique(sizes))}." if sizes else ""


def _list_measures(cell: Summary | None) -> list[tuple[str, str]]:
    """`(metric, label)` of Acc and of the Pass@k that is shown of a cell."""
    k = cell.k if cell else 8
    return [(ACC, "Acc"), *([(f"pass@{k}", f"Pass@{k}")] if k is not None and k > 1 else [])]


def _heading(task: str) -> str:
    if (found := _TASK.fullmatch(task)) is None:
        return task
    return _HEADINGS[found[1]] + (f" ({found[2]})" if found[2] else "")


def _show_rate(row: BoardRow) -> str:
    if row.rates.realized_rate is not None:
        return f"{row.rates.realized_rate:.1%}{'' if row.missed_rate is None else ' †'}"
    return f"({row.nominal:.0%})" if row.nominal is not None else ""


def _list_scores(cell: Summary | None, extras: Sequence[str]) -> list[Part]:
    if cell is None or cell.acc.value is None:
        return []
    parts = []
    for metric, label in _list_measures(cell):
        figure = cell.score(metric)
        bounds = figure.interval if "intervals" in extras else None
        span = f"{100 * bounds.low:.1f}–{100 * bounds.high:.1f}" if bounds else ""
        parts.append((label, show_figure(figure.value, ".1f", 100), span))
    return parts


def _list_more(cell: Summary | None, extras: Sequence[str]) -> dict[str, str]:
    """What `--columns` adds of a cell, by its label."""
    if cell is None or cell.acc.value is None:
        return {}
    shown = {}
    if "maj8" in extras:
        n = 8 if cell.score("maj@8").value is not None else cell.samples
        shown[f"Maj@{n}"] = show_figure(cell.score(f"maj@{n}").value, ".1f", 100)
    for name, label in (part for extra, parts in _PARTS.items() if extra in extras for part in parts.items()):
        rate = getattr(cell.rates, name)
        shown[label] = show_figure(rate, ".1f", 100)
        if name == "truncated" and rate is not None:  # what Acc were at most if all of these had gone on to be correct
            shown[label] = f"[{100 * cell.acc.value:.1f}, {100 * min(1.0, cell.acc.value + rate):.1f}]"
    return shown


def _list_recoveries(row: BoardRow, extras: Sequence[str]) -> list[Part]:
    """The Recovery of Acc and of Pass@k. A wide interval is always there, with a mark."""
    parts = []
    for name, label in _list_measures(row.average):
        figure = row.recovery.get(name, Figure())
        is_wide = figure.why == TOO_WIDE
        bounds = figure.interval if "intervals" in extras or is_wide else None
        span = f"{bounds.low:z.0%} to {bounds.high:z.0%}" if bounds else ""
        parts.append((label, "" if figure.value is None else f"{figure.value:z.0%}{f' {_WIDE}' * is_wide}", span))
    return parts


def _show_cost(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1e9:.2f} B" if value >= 1e7 else f"{value / 1e6:.2f} M" if value >= 1e4 else f"{value:.2f}"


def _lay_out_versus(board: Board) -> Table | None:
    """Differences from the row of `--vs`, in percentage points; None where there is none."""
    lines = []
    for name, each in ((row.name, contrast) for row in board.rows for contrast in row.contrasts):
        figure, tests = each.figure, map(show_p, (each.p_value, each.p_holm))
        value, span = show_figure(figure.value, "+.1f", 100), show_span(figure.low, figure.high, "+.1f", 100)
        metric = each.metric.replace("acc", "Acc").replace("pass", "Pass")
        lines.append([name, metric, _heading(each.task), figure.why or value, span, *tests])
    if not lines:
        return None
    columns = ["Model", "Metric", "Task", "Difference", "95 %", "p", "p (Holm)"]
    tested = sum(contrast.p_holm is not None for row in board.rows for contrast in row.contrasts)
    look = f"Differences from {board.versus}, in percentage points: look for intervals without 0."
    return Table(columns, lines, [f"{look} Holm's p-values are over all {tested} comparisons."], names=3)

"""The table as text: for a terminal, Markdown, CSV, LaTeX, JSON."""

import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any

from lm_eval_takeover.commands._output import WRITERS, Table
from lm_eval_takeover.escaping import for_csv
from lm_eval_takeover.results.runs import MATHEMATICAL

Row = dict[str, Any]

# The source's names of its columns, which published rows bear.
_HEADINGS = {
    "takeover_math500": "Math500",
    "takeover_gsm8k": "GSM8K",
    "takeover_amc23": "AMC23",
    "takeover_olympiadbench": "Olympiad",
    "takeover_aime24": "AIME24",
    "takeover_aime25": "AIME25",
    "takeover_aime26": "AIME26",
    "takeover_hmmt_feb26": "HMMT26",
    "takeover_math500_100": "Math500 (100)",
    "takeover_gsm8k_100": "GSM8K (100)",
    "takeover_olympiadbench_100": "Olympiad (100)",
    "takeover_gpqa_diamond": "GPQA",
    "takeover_gpqa_diamond_50": "GPQA (50)",
    "takeover_demo": "Demo",
}


def write_table(board: dict[str, Any], format_name: str, extras: Sequence[str] = ()) -> str:
    """The board in this format, with the last line's end."""
    if format_name == "json":
        return json.dumps(board, indent=2, ensure_ascii=False) + "\n"
    if format_name == "csv":
        return write_csv(board["rows"])
    table = lay_out(board, extras)
    versus = lay_out_versus(board["rows"])
    write = WRITERS[format_name]
    return write(table) + (f"\n{write(versus)}" if versus else "")


def lay_out(board: dict[str, Any], extras: Sequence[str]) -> Table:
    """Model, rate, `Acc / Pass@8` by task, the average of several tasks, Recovery, and what was asked for."""
    rows = board["rows"]
    headings = _order_headings(rows)
    costs = {"Guide passes / token": "guide_passes_per_token", "Parameters / token": "active_parameters",
             "s / problem": "seconds_per_problem"} if "cost" in extras else {}  # fmt: skip
    published = any(row["source"] != "measured" for row in rows)
    averages = ["Average"] if len(headings) != 1 or published else []
    columns = ["Model", "Rate", *headings, *averages, "Recovery", *costs, *(["Source"] if published else [])]
    lines = []
    for row in rows:
        cells = {_heading(task): cell for task, cell in row["tasks"].items()}
        lines.append(
            [
                row["model"],
                _show_rate(row),
                *(_show_cell(cells.get(heading), extras) for heading in headings),
                *(_show_cell(row["average"], extras) for _ in averages),
                _show_recovery(row, "intervals" in extras),
                *(_show_cost(row["cost"].get(name)) for name in costs.values()),
                *([row["source"].removeprefix("published, ")] if published else []),
            ]
        )
    return Table(columns, lines, list_notes(board, extras))


def list_notes(board: dict[str, Any], extras: Sequence[str]) -> list[str]:
    """What cells stand for, what Recovery is measured against, why it is blank, and the warnings."""
    intervals = (
        "Intervals are 95 %, over problems." if "intervals" in extras else "`--columns intervals` adds intervals."
    )
    ks = {(cell["k"], cell["samples"]) for row in board["rows"] for cell in row["tasks"].values()}
    k, samples = ks.pop() if len(ks) == 1 else (8, 8)
    notes = [
        f"{_name_parts(k, samples or k, extras)}, in %. {intervals}{_name_sizes(board['rows'])}",
        *_list_other_parts(board["rows"], extras, k),
    ]
    references = dict.fromkeys(row["reference"] for row in board["rows"] if row["reference"])
    notes += [f"Recovery is measured against {name}." for name in references]
    reasons: dict[str, list[str]] = {}
    for row in board["rows"]:
        if row["source"] == "measured" and row["kind"] in ("guided", "random", "early"):
            for name, label in _list_measures(row["average"]):
                low, high = (row["recovery"].get(f"{name}_{end}") for end in ("low", "high"))
                wide = "intervals" in extras and low is not None and high is not None and high - low > 1
                if why := row["recovery"].get(f"{name}_why") or (_WIDE if wide else None):
                    reasons.setdefault(why, []).append(f"{row['model']} ({label})")
        if why := row.get("average_why"):
            reasons.setdefault(f"no average: {why}", []).append(row["model"])
    notes += [f"{', '.join(dict.fromkeys(models))}: {why}." for why, models in reasons.items()]
    return notes + [f"Warning: {line}" for line in board["warnings"]]


_WIDE = "the interval of Recovery is wide, because the gap between base and guide is small for so few problems"
# What `--columns` adds to a cell: fields of the cell, and what they are called.
_PARTS = {
    "truncated": {"truncated": "truncated"},
    "task_rate": {"task_rate": "realized rate"},
    "reading": {"acc_boxed": "Acc of boxes alone", "unboxed": "read without a box", "no_answer": "no answer"},
}


def _name_parts(k: int | None, samples: int | None, extras: Sequence[str]) -> str:
    """What the parts of a cell are."""
    return " / ".join([
        "Acc",
        *([f"Pass@{k}"] if k and k > 1 else []),
        *([f"Maj@{samples}"] if "maj8" in extras else []),
        *(words for name, parts in _PARTS.items() if name in extras for words in parts.values()),
    ])  # fmt: skip


def _list_other_parts(rows: Sequence[Row], extras: Sequence[str], usual: int | None) -> list[str]:
    """A line on each task whose cells are of another Pass@k than the usual one, or whose accuracy has another name."""
    lines = []
    for row in rows:
        for task, cell in row["tasks"].items():
            called = f"; Acc is its {cell['metric']}" if "metric" in cell else ""
            if cell["k"] != usual or called:
                lines.append(f"{_heading(task)}: {_name_parts(cell['k'], cell['samples'], extras)}{called}.")
        average = row["average"]
        if average and average["k"] is None and usual is not None:
            lines.append("Average and Recovery are of Acc alone: the tasks have other numbers of samples.")
        elif average and average["k"] not in (1, usual):
            lines.append(f"Average and Recovery: Acc / Pass@{average['k']}.")
    return list(dict.fromkeys(lines))


def _name_sizes(rows: Sequence[Row]) -> str:
    """How many problems and samples each measured task has; the rows of one task may differ."""
    cells = [(task, cell) for row in rows for task, cell in row["tasks"].items() if cell["problems"]]
    sizes = [
        f"{_heading(task)}: {cell['problems']:,} problems x {cell['samples'] or '?'} samples" for task, cell in cells
    ]
    return f" {'; '.join(dict.fromkeys(sizes))}." if sizes else ""


def _list_measures(cell: dict[str, Any] | None) -> list[tuple[str, str]]:
    """`(name in JSON, label)` of Acc and of the Pass@k that is shown of a cell."""
    k = cell["k"] if cell else 8
    return [("acc", "Acc"), *([(f"pass{k}", f"Pass@{k}")] if k is not None and k > 1 else [])]


def lay_out_versus(rows: Sequence[Row]) -> Table | None:
    """Differences from the row of `--vs`, in percentage points; None where there is none."""
    compared = [row for row in rows if "vs" in row]
    if not compared:
        return None
    lines = []
    for row in compared:
        for name, found_by_task in row["vs"].items():
            if name == "model":
                continue
            label = "Acc" if name == "acc" else name.replace("pass", "Pass@")
            for task, found in found_by_task.items():
                if task == "average" and any(found is other for name, other in found_by_task.items() if name != task):
                    continue  # of one task
                lines.append([row["model"], label, _heading(task), *_show_difference(found)])
    columns = ["Model", "Metric", "Task", "Difference", "95 %", "p", "p (Holm)"]
    reference = compared[0]["vs"]["model"]
    return Table(
        columns,
        lines,
        [f"Differences from {reference}, in percentage points; Holm's p-values are over all {len(lines)} lines."],
        names=3,
    )


def _show_difference(found: dict[str, Any]) -> list[str]:
    if found["difference"] is None:
        return [found["why"], "", "", ""]
    span = f"{100 * found['low']:+.1f} to {100 * found['high']:+.1f}"
    p_values = [f"{found[name]:.3g}" if name in found else "" for name in ("p_value", "p_holm")]
    return [f"{100 * found['difference']:+.1f}", span, *p_values]


def _order_headings(rows: Sequence[Row]) -> list[str]:
    shown = list(dict.fromkeys(_heading(task) for row in rows for task in row["tasks"]))
    known = [_HEADINGS[task] for task in MATHEMATICAL]
    return [name for name in known if name in shown] + [name for name in shown if name not in known]


def _heading(task: str) -> str:
    return _HEADINGS.get(task, task)


def _show_rate(row: Row) -> str:
    if row["realized_rate"] is not None:
        return f"{row['realized_rate']:.1%}"
    return f"({row['nominal']:.0%})" if row["nominal"] is not None else ""


def _show_cell(cell: dict[str, Any] | None, extras: Sequence[str]) -> str:
    """`27.6 / 67.0`, each with its interval behind it where that was asked for."""
    if cell is None or cell["acc"] is None:
        return ""
    shown = [name for name, _ in _list_measures(cell)]
    majority = "maj8" if cell.get("maj8") is not None else f"maj{cell['samples']}"
    more = [majority] if "maj8" in extras else []
    more += [name for extra, parts in _PARTS.items() if extra in extras for name in parts]
    spans = "intervals" in extras and cell.get("acc_low") is not None
    parts = []
    for name in [*shown, *more]:
        value = "-" if cell.get(name) is None else f"{100 * cell[name]:.1f}"
        span = f" ({100 * cell[f'{name}_low']:.1f}–{100 * cell[f'{name}_high']:.1f})" if spans and name in shown else ""
        parts.append(value + span)
    return " / ".join(parts)


def _show_recovery(row: Row, intervals: bool) -> str:
    recovery = row["recovery"]
    names = [name for name, _ in _list_measures(row["average"]) if name in recovery]
    if all(recovery[name] is None for name in names):
        return ""
    parts = []
    for name in names:
        low, high = recovery[f"{name}_low"], recovery[f"{name}_high"]
        span = f" ({low:z.0%} to {high:z.0%})" if intervals and low is not None else ""
        parts.append(("-" if recovery[name] is None else f"{recovery[name]:z.0%}") + span)
    return " / ".join(parts)


def _show_cost(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1e9:.2f} B" if value >= 1e7 else f"{value / 1e6:.2f} M" if value >= 1e4 else f"{value:.2f}"


def write_csv(rows: Sequence[Row]) -> str:
    """A line per row and task, `average` among them; shares from 0 to 1, empty where there is none."""
    shown = [cell for row in rows for cell in [*row["tasks"].values(), row["average"] or {}]]
    known = {name: None for cell in shown for name in cell if re.fullmatch(r"(pass|maj)\d+", name)}
    others = sorted(
        known.keys() - {"pass8", "maj8"}, key=lambda name: (name.startswith("maj"), int(name.lstrip("pasmj")))
    )
    cells = [f"{name}{end}" for name in ["acc", "pass8", "maj8", *others] for end in ("", "_low", "_high")]
    counts = ["truncated", "problems", "samples", "task_rate", *_PARTS["reading"]]
    gained = dict.fromkeys(["acc", "pass8", *(name for row in rows for name in row["recovery"] if name in known)])
    recoveries = [f"recovery_{metric}{end}" for metric in gained for end in ("", "_low", "_high")]
    costs = ["base_passes_per_token", "guide_passes_per_token", "active_parameters", "seconds_per_problem"]
    named = ["model", "kind", "source", "nominal", "realized_rate", "reference"]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*named, "task", *cells, *counts, *recoveries, *costs], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        shared = {name: row[name] for name in named} | {name: row["cost"].get(name) for name in costs}
        recovery = {name: row["recovery"].get(name.removeprefix("recovery_")) for name in recoveries}
        for task, cell in [*row["tasks"].items(), ("average", row["average"] or {})]:
            line = shared | {"task": task} | {name: cell.get(name) for name in [*cells, *counts]}
            cells_of = line | (recovery if task == "average" else {})
            writer.writerow({name: for_csv(value) for name, value in cells_of.items()})
    return stream.getvalue()

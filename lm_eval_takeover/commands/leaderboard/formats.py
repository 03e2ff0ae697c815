"""The table as text: for a terminal, Markdown, CSV, LaTeX, JSON."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    "takeover_math500_100": "Math500 (100)",
    "takeover_gsm8k_100": "GSM8K (100)",
    "takeover_olympiadbench_100": "Olympiad (100)",
    "takeover_gpqa_diamond": "GPQA",
    "takeover_gpqa_diamond_50": "GPQA (50)",
    "takeover_demo": "Demo",
}
_METRICS = ("acc", "pass8", "maj8")
_LATEX = {"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
          "^": r"\^{}", "~": r"\textasciitilde{}"}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Texts: the first column is a name, the others are figures. `notes` stand below."""

    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def write_table(board: dict[str, Any], format_name: str, extras: Sequence[str] = ()) -> str:
    """The board in this format, with the last line's end."""
    if format_name == "json":
        return json.dumps(board, indent=2, ensure_ascii=False) + "\n"
    if format_name == "csv":
        return write_csv(board["rows"])
    table = lay_out(board, extras)
    versus = lay_out_versus(board["rows"])
    write = {"table": write_terminal, "md": write_markdown, "latex": write_latex}[format_name]
    return write(table) + (f"\n{write(versus)}" if versus else "")


def lay_out(board: dict[str, Any], extras: Sequence[str]) -> Table:
    """Model, rate, `Acc / Pass@8` by task, average, Recovery, and what was asked for."""
    rows = board["rows"]
    headings = _order_headings(rows)
    costs = {"Guide passes / token": "guide_passes_per_token", "Parameters / token": "active_parameters",
             "s / problem": "seconds_per_problem"} if "cost" in extras else {}  # fmt: skip
    published = any(row["source"] != "measured" for row in rows)
    columns = ["Model", "Rate", *headings, "Average", "Recovery", *costs, *(["Source"] if published else [])]
    lines = []
    for row in rows:
        cells = {_heading(task): cell for task, cell in row["tasks"].items()}
        lines.append(
            [
                row["model"],
                _show_rate(row),
                *(_show_cell(cells.get(heading), extras) for heading in headings),
                _show_cell(row["average"], extras),
                _show_recovery(row["recovery"], "intervals" in extras),
                *(_show_cost(row["cost"].get(name)) for name in costs.values()),
                *([row["source"].removeprefix("published, ")] if published else []),
            ]
        )
    return Table(columns, lines, list_notes(board, extras))


def list_notes(board: dict[str, Any], extras: Sequence[str]) -> list[str]:
    """What cells stand for, what Recovery is measured against, why it is blank, and the warnings."""
    parts = [
        "Acc / Pass@8",
        *(["Maj@8"] if "maj8" in extras else []),
        *(["truncated"] if "truncated" in extras else []),
        *(["realized rate"] if "task_rate" in extras else []),
    ]
    intervals = (
        "Intervals are 95 %, over problems." if "intervals" in extras else "`--columns intervals` adds intervals."
    )
    notes = [f"{' / '.join(parts)}, in %. {intervals}"]
    references = dict.fromkeys(row["reference"] for row in board["rows"] if row["reference"])
    notes += [f"Recovery is measured against {name}." for name in references]
    reasons: dict[str, list[str]] = {}
    for row in board["rows"]:
        if row["source"] == "measured" and row["kind"] in ("guided", "random", "early"):
            for name, label in (("acc", "Acc"), ("pass8", "Pass@8")):
                if why := row["recovery"].get(f"{name}_why"):
                    reasons.setdefault(why, []).append(f"{row['model']} ({label})")
        if why := row.get("average_why"):
            reasons.setdefault(f"no average: {why}", []).append(row["model"])
    notes += [f"{', '.join(dict.fromkeys(models))}: {why}." for why, models in reasons.items()]
    return notes + [f"Warning: {line}" for line in board["warnings"]]


def lay_out_versus(rows: Sequence[Row]) -> Table | None:
    """Differences from the row of `--vs`, in percentage points; None where there is none."""
    compared = [row for row in rows if "vs" in row]
    if not compared:
        return None
    lines = []
    for row in compared:
        for name, label in (("acc", "Acc"), ("pass8", "Pass@8")):
            for task, found in row["vs"][name].items():
                lines.append([row["model"], label, _heading(task), *_show_difference(found)])
    columns = ["Model", "Metric", "Task", "Difference", "95 %", "p", "p (Holm)"]
    reference = compared[0]["vs"]["model"]
    return Table(
        columns,
        lines,
        [f"Differences from {reference}, in percentage points; Holm's p-values are over all {len(lines)} lines."],
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
    return _HEADINGS.get(task, task.removeprefix("takeover_"))


def _show_rate(row: Row) -> str:
    if row["realized_rate"] is not None:
        return f"{row['realized_rate']:.1%}"
    return f"({row['nominal']:.0%})" if row["nominal"] is not None else ""


def _show_cell(cell: dict[str, Any] | None, extras: Sequence[str]) -> str:
    """`27.6 / 67.0`, with what was asked for behind it."""
    if cell is None or cell["acc"] is None:
        return ""
    names = ["acc", "pass8", *(name for name in ("maj8", "truncated", "task_rate") if name in extras)]
    text = " / ".join("-" if cell.get(name) is None else f"{100 * cell[name]:.1f}" for name in names)
    if "intervals" in extras and cell.get("acc_low") is not None:
        spans = (f"{100 * cell[f'{name}_low']:.1f}–{100 * cell[f'{name}_high']:.1f}" for name in ("acc", "pass8"))
        text += f" ({', '.join(spans)})"
    return text


def _show_recovery(recovery: dict[str, Any], intervals: bool) -> str:
    if recovery["acc"] is None and recovery["pass8"] is None:
        return ""
    text = " / ".join("-" if recovery[name] is None else f"{recovery[name]:z.0%}" for name in ("acc", "pass8"))
    spans = [(recovery[f"{name}_low"], recovery[f"{name}_high"]) for name in ("acc", "pass8")]
    known = [f"{low:z.0%} to {high:z.0%}" for low, high in spans if low is not None]
    if intervals and known:
        text += f" ({', '.join(known)})"
    return text


def _show_cost(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1e9:.2f} B" if value >= 1e7 else f"{value / 1e6:.2f} M" if value >= 1e4 else f"{value:.2f}"


def write_terminal(table: Table) -> str:
    """For a terminal of any width: where it is narrow, what slashes part stands in lines, and names wrap."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    width = Console().width
    columns, rows = table.columns, table.rows
    if sum(max(map(len, cells)) + 2 for cells in zip(columns, *rows, strict=True)) > width:
        columns = [column.replace(" ", "\n") for column in columns]
        rows = [[row[0], *(cell.replace(" / ", "\n").replace(" (", "\n(") for cell in row[1:])] for row in rows]
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        longest = min(14, max(len(row[place]) for row in rows)) if place == 0 else None
        shown.add_column(Text(column), justify="right" if place else "left", overflow="fold", min_width=longest)
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    console.print(shown)
    for note in table.notes:
        console.print(Text(note))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def write_markdown(table: Table) -> str:
    """As GitHub shows it."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

    rule = "| " + " | ".join(["---", *["--:"] * (len(table.columns) - 1)]) + " |"
    lines = [line(table.columns), rule, *map(line, table.rows), "", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def write_latex(table: Table) -> str:
    """A tabular that needs no package."""

    def escape(text: str) -> str:
        return "".join(_LATEX.get(letter, letter) for letter in text).replace("–", "--")

    lines = [rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", r"\hline"]
    lines += [" & ".join(map(escape, table.columns)) + r" \\", r"\hline"]
    lines += [" & ".join(map(escape, row)) + r" \\" for row in table.rows]
    lines += [r"\hline", r"\end{tabular}", *(f"% {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def write_csv(rows: Sequence[Row]) -> str:
    """A line per row and task, `average` among them; shares from 0 to 1, empty where there is none."""
    cells = [f"{metric}{end}" for metric in _METRICS for end in ("", "_low", "_high")]
    counts = ["truncated", "problems", "samples", "task_rate"]
    recoveries = [f"recovery_{metric}{end}" for metric in ("acc", "pass8") for end in ("", "_low", "_high")]
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
            writer.writerow(line | (recovery if task == "average" else {}))
    return stream.getvalue()

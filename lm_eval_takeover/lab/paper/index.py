"""Writes the index: each item with its measured table, the printed one, its figures, and what differs in set-up.

Every number is one of leaderboard.json, an analysis, or a calibration file; nothing is computed here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lm_eval_takeover import __version__
from lm_eval_takeover.commands._output import Table, write_file, write_markdown
from lm_eval_takeover.commands.leaderboard.formats import MISSED
from lm_eval_takeover.escaping import for_markdown, for_terminal, make_page_policy
from lm_eval_takeover.lab.paper.manifest import Item, Manifest, PaperPair, Part, name_row
from lm_eval_takeover.lab.report.inputs import read_figure
from lm_eval_takeover.results.published import read_tables

SPIKE_RATIOS = (0.01, 0.03, 0.05)  # of Table 13
_SHARES = {"share_base", "share_set", "iou", "share", "acc", "acc_host", "acc_donor", "near_share", "replaced_share"}
_SHARES |= {"top1", "top5", "top8"}
_PAGE = Path(__file__).with_name("page")
ALONE = ("base", "thinking", "guide")  # kinds of rows that one model writes
_METRICS = {"acc": "Acc", "pass8": "Pass@8"}


@dataclass
class Shown:
    """An item of one set-up: tables by title, figures by path, lines of text."""

    pair: str
    tables: dict[str, Table] = field(default_factory=dict)
    figures: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    report: Path | None = None


def write_index(
    run_dir: Path,
    manifest: Manifest,
    folders: Mapping[str, Path],
    chosen: Mapping[str, Mapping[str, Item]],
    failed: Mapping[str, Sequence[str]],
) -> None:
    """`index.html` and `index.md`. `failed` says of a set-up which commands did not end well."""
    pairs, shown = {name: manifest.pairs[name] for name in chosen}, []
    for name, item in manifest.items.items():
        of_pairs = {pair: items[name] for pair, items in chosen.items() if name in items}
        own = [show_item(each, pair, folders[pair], failed.get(pair, ())) for pair, each in of_pairs.items()]
        if own:
            shown.append((name, item, [] if item.missing else own, _read_printed(item)))
    write_file("run_dir", run_dir / "index.md", _write_markdown(run_dir, pairs, shown))
    write_file("run_dir", run_dir / "index.html", _write_page(run_dir, pairs, shown))


def _read_printed(item: Item) -> Table | None:
    if item.secondary:
        heading, *lines = map(list, item.secondary)
        return Table(heading, lines, ["By secondary copies: the paper itself was not at hand."])
    if item.printed is None:
        return None
    printed = read_tables()[item.printed]
    rows = [[cell or "" for cell in row] for row in printed["rows"]]
    note = "As the paper prints it; our copy lost what stood in empty cells and brackets. What ~ marks is by secondary copies."
    return Table(printed["columns"], rows, [note], names=2 if rows[0][1][:1].isalpha() else 1)


def show_item(item: Item, pair: str, folder: Path, failed: Sequence[str]) -> Shown:
    """The results of an item that are there."""
    needed = [" compare ", " calibrate " if item.calibrate else f"/{item.place} "]
    shown = Shown(pair, notes=[line for line in failed if any(word in line for word in needed)])
    board, analysis = folder / "leaderboard.json", folder / "analysis" / item.place
    rows = find_rows(json.loads(board.read_text()), item) if board.exists() else {}
    if item.board and rows:
        shown.tables["measured"] = lay_out_board(rows, item)
    elif mixed := {name: row for name, row in rows.items() if row["kind"] not in ALONE}:
        shown.notes.append(f"Realized rates, in percent: {', '.join(f'{name} {_show_rate(mixed[name])}' for name in mixed)}.")
    for part in item.parts:
        if (path := analysis / f"{part.analysis}.json").exists():
            shown.tables[part.analysis] = lay_out_part(json.loads(path.read_text()), part)
    shown.figures = [path for name in item.figures if (path := analysis / f"{name}.svg").exists()]
    if item.calibrate and (files := sorted((folder / "thresholds").glob("*.json"))):
        shown.tables["tau / kappa"] = lay_out_thresholds(files)
    report = folder / "report.html"
    shown.report = report if item.report and report.exists() else None
    return shown


def find_rows(board: Mapping[str, Any], item: Item) -> dict[str, Mapping[str, Any]]:
    """Rows of the leaderboard by their names in the item, in its order. A thinking row may be called by its model there."""
    by_label = {row["kind"] if row["kind"] == "thinking" else row["model"]: row for row in board["rows"]}
    return {row: by_label[name_row(row)] for row in item.rows if name_row(row) in by_label}


def _show_rate(row: Mapping[str, Any]) -> str:
    return _percent(row["realized_rate"]) + " †" * (row.get("missed_rate") is not None)


def lay_out_board(rows: Mapping[str, Mapping[str, Any]], item: Item) -> Table:
    """Rows in percent: by task with the average of several, the average alone, or Recovery alone."""
    mixed = {label: row for label, row in rows.items() if row["kind"] not in ALONE}
    figures = {
        label: row["tasks"] | ({"Average": row["average"]} if len(row["tasks"]) > 1 else {})
        for label, row in (mixed if item.board == "recovery" else rows).items()
    }
    named = list(dict.fromkeys(name for cells in figures.values() for name in cells))
    shown = {"tasks": named, "average": named[-1:], "recovery": []}[str(item.board)]
    lines = [
        [label, _show_rate(rows[label]), *map(_pair, [*map(cells.get, shown), rows[label]["recovery"]])]
        for label, cells in figures.items()
    ]
    reasons: dict[str, list[str]] = {}
    for (label, row), (metric, name) in product(mixed.items(), _METRICS.items()):
        if why := row["recovery"].get(f"{metric}_why"):
            reasons.setdefault(why, []).append(f"{label} ({name})")
    notes = [
        "Each cell is Acc / Pass@8 in percent.",
        *(f"No Recovery of {', '.join(of)}: {why}." for why, of in reasons.items()),
        *[MISSED] * any("†" in line[1] for line in lines),
    ]
    return Table(["Row", "Realized", *shown, "Recovery"], lines, notes)


def _pair(cell: Mapping[str, Any] | None) -> str:
    return " / ".join(_percent((cell or {}).get(metric)) or "–" for metric in _METRICS)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def lay_out_part(lines: Sequence[Mapping[str, Any]], part: Part) -> Table:
    """The part of an analysis, its texts before its numbers; shares are in percent."""
    kept = [line for line in lines if all(line[name] in values for name, values in part.where.items())]
    texts = [name for name in part.columns if any(isinstance(line[name], str) for line in kept)]
    shares: list[str] = []
    for before, name in zip(("", *part.columns), part.columns, strict=False):
        shares += [name] if name in _SHARES or (name in ("low", "high") and before in shares) else []
    notes = [f"In percent: {', '.join(shares).replace('_', ' ')}."] if shares else []
    if any(line.get("low", 0) is None for line in kept):
        notes.append("–: no interval, since all resamples of so few problems agree.")
    columns = [*texts, *(name for name in part.columns if name not in texts)]
    rows = [[_show(line[name], name in shares) for name in columns] for line in kept]
    return Table([name.replace("_", " ") for name in columns], rows, notes, len(texts))


def _show(value: Any, is_share: bool) -> str:
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    return _percent(value) if is_share else f"{value:.4g}"


def lay_out_thresholds(paths: Sequence[Path]) -> Table:
    """Table 13: tau and kappa of ce by calibration set and spike ratio."""
    rows = []
    for path in paths:
        by_ratio = {row["rho"]: row for row in json.loads(path.read_text())["scores"]["ce"]["table"]}
        cells = [by_ratio[ratio] for ratio in SPIKE_RATIOS]
        rows.append([path.stem, *(f"{cell['tau']:.3f} / {cell['kappa_threshold_to_mean']:.3f}" for cell in cells)])
    return Table(["Calibration set", *(f"{ratio:.0%}" for ratio in SPIKE_RATIOS)], rows)


Listed = Sequence[tuple[str, Item, Sequence[Shown], Table | None]]


def _write_markdown(run_dir: Path, pairs: Mapping[str, PaperPair], shown: Listed) -> str:
    parts = ["# The papers' tables and figures"]
    parts += ["\n".join(f"- {for_markdown(name)}: {for_markdown(pair.summary)}" for name, pair in pairs.items())]
    for name, item, own, printed in shown:
        parts += [f"## {name} {item.title}", *item.notes]
        for one in own:
            parts += [f"### {for_markdown(one.pair)}", *map(for_markdown, one.notes)]
            parts += [f"{title}\n\n{write_markdown(table).strip()}" for title, table in one.tables.items()]
            parts += [f"![{path.stem}]({path.relative_to(run_dir)})" for path in one.figures]
            parts += [f"[Report]({one.report.relative_to(run_dir)})"] if one.report else []
        parts += [f"### Printed\n\n{write_markdown(printed).strip()}"] if printed else []
    return "\n\n".join(parts) + "\n"


def _write_page(run_dir: Path, pairs: Mapping[str, PaperPair], shown: Listed) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"visible": for_terminal, "figure": read_figure}
    style = (_PAGE / "paper.css").read_text(encoding="utf-8")
    template = environment.from_string((_PAGE / "index.html.jinja").read_text(encoding="utf-8"))
    policy = make_page_policy([], style)
    page = {"version": __version__, "policy": policy, "style": Markup(style), "pairs": pairs, "items": shown}
    return template.render(page, run_dir=run_dir)

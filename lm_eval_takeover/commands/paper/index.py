"""Writes the index: each item with its measured table, the printed one, its figures, and what differs in set-up.

Every number is one of leaderboard.json, of an analysis, or of a calibration file; nothing is computed here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lm_eval_takeover import __version__
from lm_eval_takeover.commands._output import Table, write_file, write_markdown
from lm_eval_takeover.commands.paper.figures import draw_rates
from lm_eval_takeover.commands.paper.manifest import RATES, Item, Manifest, PaperPair, Part
from lm_eval_takeover.commands.report.figures import read_figure
from lm_eval_takeover.escaping import for_markdown, for_terminal, make_page_policy
from lm_eval_takeover.results.published import read_tables

SPIKE_RATIOS = (0.01, 0.03, 0.05)  # of Table 13
_SHARES = {"share_base", "share_set", "iou", "share", "acc", "acc_host", "acc_donor", "near_share", "replaced_share"}
_SHARES |= {"top1", "top5", "top8"}
_PAGE = Path(__file__).with_name("page")
_METRICS = ("acc", "pass8")


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
        own = [show_item(item, pair, folders[pair], failed.get(pair, ())) for pair in chosen if name in chosen[pair]]
        if own:
            shown.append((name, item, own, _read_printed(item.printed) if item.printed else None))
    write_file("run_dir", run_dir / "index.md", _write_markdown(run_dir, pairs, shown))
    write_file("run_dir", run_dir / "index.html", _write_page(run_dir, pairs, shown))


def _read_printed(number: str) -> Table:
    printed = read_tables()[number]
    rows = [[cell or "" for cell in row] for row in printed["rows"]]
    return Table(printed["columns"], rows, names=2 if rows[0][1][:1].isalpha() else 1)


def show_item(item: Item, pair: str, folder: Path, failed: Sequence[str]) -> Shown:
    """The results of an item that are there."""
    needed = [" compare ", " calibrate " if item.calibrate else f"/{item.place} "]
    shown = Shown(pair, notes=[line for line in failed if any(word in line for word in needed)])
    board, frontier, analysis = folder / "leaderboard.json", folder / "frontier.json", folder / "analysis" / item.place
    if item.board and board.exists():
        shown.tables["measured"] = lay_out_board(json.loads(board.read_text()), item)
    if RATES in item.figures and frontier.exists():
        write_file("run_dir", folder / f"{RATES}.svg", draw_rates(json.loads(frontier.read_text()), item.rows))
        shown.figures.append(folder / f"{RATES}.svg")
    for part in item.parts:
        if (path := analysis / f"{part.analysis}.json").exists():
            shown.tables[part.analysis] = lay_out_part(json.loads(path.read_text()), part)
    shown.figures += [path for name in item.figures if (path := analysis / f"{name}.svg").exists()]
    if item.calibrate and (files := sorted((folder / "thresholds").glob("*.json"))):
        shown.tables["tau / kappa"] = lay_out_thresholds(files)
    report = folder / "report.html"
    shown.report = report if item.report and report.exists() else None
    return shown


def lay_out_board(board: Mapping[str, Any], item: Item) -> Table:
    """Rows of the item in its order, in percent: by task, the average alone, or Recovery."""
    # A thinking row is called by its model there.
    by_label = {row["kind"] if row["kind"] == "thinking" else row["model"]: row for row in board["rows"]}
    rows = {label: by_label[label] for label in item.rows if label in by_label}
    realized = {label: _percent(row["realized_rate"]) for label, row in rows.items()}
    recovery = {label: _pair(row["recovery"]) for label, row in rows.items()}
    if item.board == "recovery":
        return Table(["Row", "Realized", "Recovery Acc / Pass@8"], [[x, realized[x], recovery[x]] for x in rows])
    tasks = dict.fromkeys(task for row in rows.values() for task in row["tasks"])
    shown = list(tasks) if item.board == "tasks" or len(tasks) == 1 else []
    lines = []
    for label, row in rows.items():
        cells = [_pair(row["tasks"].get(task)) for task in shown]
        lines.append([label, realized[label], *cells, _pair(row["average"]), recovery[label]])
    notes = ["Each cell is Acc / Pass@8 in percent."]
    return Table(["Row", "Realized", *shown, "Average", "Recovery"], lines, notes)


def _pair(cell: Mapping[str, Any] | None) -> str:
    return " / ".join(_percent((cell or {}).get(metric)) or "–" for metric in _METRICS)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def lay_out_part(lines: Sequence[Mapping[str, Any]], part: Part) -> Table:
    """The part of an analysis; shares are in percent."""
    kept = [line for line in lines if all(line[name] in values for name, values in part.where.items())]
    shares: list[str] = []
    for before, name in zip(("", *part.columns), part.columns, strict=False):
        shares += [name] if name in _SHARES or (name in ("low", "high") and before in shares) else []
    names = sum(isinstance(kept[0][name], (str, bool)) for name in part.columns) if kept else 1
    notes = [f"In percent: {', '.join(shares).replace('_', ' ')}."] if shares else []
    rows = [[_show(line[name], name in shares) for name in part.columns] for line in kept]
    return Table([name.replace("_", " ") for name in part.columns], rows, notes, names)


def _show(value: Any, is_share: bool) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
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
    lines = ["# The papers' tables and figures", ""]
    lines += [f"- {for_markdown(name)}: {for_markdown(pair.note)}" for name, pair in pairs.items()]
    for name, item, own, printed in shown:
        lines += ["", f"## {name} {item.title}", "", *item.notes]
        for part in own:
            lines += ["", f"### {for_markdown(part.pair)}", *(f"\n{for_markdown(note)}" for note in part.notes)]
            lines += [f"\n{title}\n\n{write_markdown(table)}" for title, table in part.tables.items()]
            lines += [f"\n![{path.stem}]({path.relative_to(run_dir)})" for path in part.figures]
            lines += [f"\n[Report]({part.report.relative_to(run_dir)})"] if part.report else []
        lines += [f"\n### Printed\n\n{write_markdown(printed)}"] if printed else []
    return "\n".join(lines).rstrip() + "\n"


def _write_page(run_dir: Path, pairs: Mapping[str, PaperPair], shown: Listed) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"visible": for_terminal, "figure": read_figure}
    style = (_PAGE / "paper.css").read_text(encoding="utf-8")
    template = environment.from_string((_PAGE / "index.html.jinja").read_text(encoding="utf-8"))
    policy = make_page_policy([], style)
    page = {"version": __version__, "policy": policy, "style": Markup(style), "pairs": pairs, "items": shown}
    return template.render(page, run_dir=run_dir)

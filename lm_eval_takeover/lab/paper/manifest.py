"""What the papers show: `manifest.toml` in the package, the commands that make it, and the index of what they made.

A set-up (`pairs`) is two models and the tasks that they answer. An item (`items`) names the set-ups that it is of, the rows of
`compare` that it needs, and where its tables and figures are found among the results:

RUN_DIR/PAIR                     the folder of compare, with leaderboard.json
RUN_DIR/PAIR/reverse             that of rows with a budget by which the base takes over
RUN_DIR/PAIR/analysis/ROWS       what analyze wrote of these rows
RUN_DIR/PAIR/report.html         what report wrote
RUN_DIR/PAIR/thresholds          the calibration files of Table 13
RUN_DIR/index.html, index.md     each item with its measured table, the printed one, its figures, and what differs in set-up
"""

import argparse
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lm_eval_takeover import __version__
from lm_eval_takeover.commands._output import Table, show_figure, write_file, write_markdown
from lm_eval_takeover.commands.leaderboard.formats import MISSED
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.escaping import for_markdown, for_terminal, make_page_policy
from lm_eval_takeover.lab.report.inputs import read_figure
from lm_eval_takeover.results.published import read_tables
from lm_eval_takeover.storage.files import make_component, read_bounded
from lm_eval_takeover.storage.schema import check

BoardPart = Literal["tasks", "average", "recovery"]
REVERSE = "reverse"  # the folder of rows whose calibration is of this direction


def name_row(row: str) -> str:
    """The row's name in the tables of compare, which is that of its folder."""
    return re.sub("[:=]", "-", row)


def is_reverse(row: str) -> bool:
    """Whether it has a budget by which the base takes over."""
    return "direction=reverse" in row and "@" in row


@dataclass(frozen=True)
class PaperPair:
    """A set-up. Without models it is the bundled pair. `note` says what the paper does not."""

    tasks: str
    note: str = ""
    base: str | None = None
    guide: str | None = None
    thinking: str | None = None  # the reasoning model of the base's size
    chat: bool = False  # whether base and guide are asked in the guide's template, with thinking on
    calibrate: tuple[str, ...] = ()  # tasks that Table 13 calibrates on
    instead: dict[str, str] = field(default_factory=dict)  # rows of items, and what they are of this pair

    @property
    def summary(self) -> str:
        """Its models, if it is not the bundled pair, its tasks and its note."""
        models = f"{self.base} with {self.guide}. " if self.base else ""
        return f"{models}Tasks: {self.tasks}. {self.note}".strip()


@dataclass(frozen=True)
class ItemPart:
    """A table of an analysis: these columns of the lines whose fields have one of these values."""

    analysis: str
    columns: tuple[str, ...]
    where: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperItem:
    """A table, a figure or a claim. `missing` says what of it cannot be made yet."""

    title: str
    pairs: tuple[str, ...]
    rows: tuple[str, ...] = ()  # of compare; thinking is left out where the set-up has none
    note: str = ""
    rollouts: Literal["base", "guide"] = "base"  # whose texts its analyses read
    printed: str | None = None  # the number of its table in published.json
    secondary: tuple[tuple[str, ...], ...] = ()  # headings and rows of figures by secondary copies
    board: BoardPart | None = None  # which part of the leaderboard it shows
    parts: tuple[ItemPart, ...] = ()
    figures: tuple[str, ...] = ()
    report: bool = False  # whether it is read in the report
    calibrate: bool = False
    missing: str = ""

    @property
    def notes(self) -> list[str]:
        return [*filter(None, (self.note, self.missing and f"Missing: {self.missing}"))]

    @property
    def labels(self) -> list[str]:
        """The folders of its rows that have a journal."""
        rows = (f"{REVERSE}/{row}" if is_reverse(row) else row for row in self.rows if row != "thinking")
        return list(map(name_row, rows))

    @property
    def place(self) -> str:
        """Where its analyses lie: they are of its own rows alone."""
        return make_component("+".join(self.labels))

    @property
    def analyses(self) -> list[str]:
        """The analyses that it needs; a report needs one."""
        return [*(part.analysis for part in self.parts), *self.figures, *(["budget"] if self.report else [])]


@dataclass(frozen=True)
class Manifest:
    """Set-ups and items by name, in the papers' order."""

    pairs: dict[str, PaperPair]
    items: dict[str, PaperItem] = field(default_factory=dict)

    def choose(self, pair: str | None, items: str) -> dict[str, dict[str, PaperItem]]:
        """By set-up its items; one that no item names has all. Raises ArgumentError for unknown names, or if nothing is left."""
        names = [name.strip() for name in items.split(",") if name.strip()] or list(self.items)
        given = [("items", name, self.items.keys()) for name in names]
        for option, name, known in [*given, *([("pair", pair, self.pairs.keys())] if pair else [])]:
            if name not in known:
                raise ArgumentError(f"--{option} '{name}' is not in the manifest; {nearest(name, known)}")
        chosen: dict[str, dict[str, PaperItem]] = {}
        is_named = pair is None or any(pair in item.pairs for item in self.items.values())
        for name in self.items:
            for own in self.items[name].pairs if is_named else (str(pair),):
                if name in names and pair in (None, own):
                    rows = (self.pairs[own].instead.get(row, row) for row in self.items[name].rows)
                    chosen.setdefault(own, {})[name] = replace(self.items[name], rows=tuple(dict.fromkeys(rows)))
        if not chosen:
            own = ", ".join(name for name, item in self.items.items() if pair in item.pairs)
            raise ArgumentError(f"--pair '{pair}' has none of {', '.join(names)}; it has {own}")
        return chosen


def read_manifest(own: Path | None = None) -> Manifest:
    """The one in the package, and the set-ups of a file of one's own. Raises ArgumentError for a file that is none."""
    packaged = Path(__file__).with_name("manifest.toml").read_text(encoding="utf-8")
    manifest: Manifest = check(tomllib.loads(packaged), Manifest)
    if own is None:
        return manifest
    try:
        more: Manifest = check(tomllib.loads(read_bounded(own).decode()), Manifest)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"--setups '{own}' cannot be read: {error}; expected [pairs.NAME] with base, guide, tasks"
        ) from error
    return Manifest({**manifest.pairs, **more.pairs}, {**manifest.items, **more.items})


def plan_commands(
    options: argparse.Namespace, pair: PaperPair, items: Mapping[str, PaperItem], folder: Path
) -> Iterator[list[str]]:
    """The commands of one set-up in order, as arguments of `lm-eval-takeover`."""
    limit = [] if options.limit is None else ["--limit", f"{options.limit:g}"]
    models = [word for role in ("base", "guide") if (model := getattr(pair, role)) for word in (f"--{role}", model)]
    chat = ["--apply_chat_template", "--enable_thinking", "True"] if pair.chat else []
    if rows := dict.fromkeys(row for item in items.values() for row in item.rows if row != "thinking" or pair.thinking):
        thinking = f"thinking={DEMO.get(pair.thinking or '', pair.thinking)}"
        compare = ["compare", *models, "--tasks", *pair.tasks.split(), *chat, *limit]
        named = [thinking if row == "thinking" else row for row in rows if not is_reverse(row)]
        yield [*compare, "--rows", ",".join(named), "--run_dir", str(folder), *options.rest]
        if back := [row for row in rows if is_reverse(row)]:
            way = ["--direction", REVERSE, "--run_dir", str(folder / REVERSE)]
            yield [*compare, "--rows", ",".join(back), *way, *options.rest]
    analysed = [item for item in items.values() if item.analyses]
    for role in dict.fromkeys(item.rollouts for item in analysed):
        yield ["score", str(folder / role)]
    for place in dict.fromkeys(item.place for item in analysed):
        those, out = [item for item in analysed if item.place == place], folder / "analysis" / place
        only = ",".join(dict.fromkeys(name for item in those for name in item.analyses))
        whose = ["--rollouts", those[0].rollouts]
        yield ["analyze", *(str(folder / label) for label in those[0].labels), "--out", str(out), "--only", only, *whose]
        if any(item.report for item in those):
            yield ["report", str(out), "--out", str(folder / "report.html")]
    for task in (pair.calibrate or pair.tasks.split()) if any(item.calibrate for item in items.values()) else ():
        out = folder / "thresholds" / f"{make_component(task)}.json"
        if not out.exists():
            prompts = ["--num_prompts", limit[1]] if limit and options.limit >= 1 else []
            yield ["calibrate", *models, "--task", task, "--diagnostic", *chat, *prompts, "--out", str(out)]


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
    chosen: Mapping[str, Mapping[str, PaperItem]],
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


def _read_printed(item: PaperItem) -> Table | None:
    if item.secondary:
        heading, *lines = map(list, item.secondary)
        return Table(heading, lines, ["By secondary copies: the paper itself was not at hand."])
    if item.printed is None:
        return None
    printed = read_tables()[item.printed]
    rows = [[cell or "" for cell in row] for row in printed["rows"]]
    note = "As the paper prints it; our copy lost what stood in empty cells and brackets. What ~ marks is by secondary copies."
    return Table(printed["columns"], rows, [note], names=2 if rows[0][1][:1].isalpha() else 1)


def show_item(item: PaperItem, pair: str, folder: Path, failed: Sequence[str]) -> Shown:
    needed = [" compare ", " calibrate " if item.calibrate else f"/analysis/{item.place} "]
    shown = Shown(pair, notes=[line for line in failed if any(word in line for word in needed)])
    board, analysis = folder / "leaderboard.json", folder / "analysis" / item.place
    rows: dict[str, Mapping[str, Any]] = {}
    if board.exists():  # a thinking row may be called by its model there
        measured = json.loads(board.read_text())["rows"]
        by_label = {row["kind"] if row["kind"] == "thinking" else row["model"]: row for row in measured}
        rows = {row: by_label[name_row(row)] for row in item.rows if name_row(row) in by_label}
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


def _show_rate(row: Mapping[str, Any]) -> str:
    return show_figure(row["realized_rate"], ".1f", 100) + " †" * (row.get("missed_rate") is not None)


def lay_out_board(rows: Mapping[str, Mapping[str, Any]], item: PaperItem) -> Table:
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
    return " / ".join(show_figure((cell or {}).get(metric), ".1f", 100) or "–" for metric in _METRICS)


def lay_out_part(lines: Sequence[Mapping[str, Any]], part: ItemPart) -> Table:
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
    return show_figure(value, ".1f", 100) if is_share else show_figure(value, ".4g")


def lay_out_thresholds(paths: Sequence[Path]) -> Table:
    """Table 13: tau and kappa of ce by calibration set and spike ratio."""
    rows = []
    for path in paths:
        by_ratio = {row["rho"]: row for row in json.loads(path.read_text())["scores"]["ce"]["table"]}
        cells = [by_ratio[ratio] for ratio in SPIKE_RATIOS]
        rows.append([path.stem, *(f"{cell['tau']:.3f} / {cell['kappa_threshold_to_mean']:.3f}" for cell in cells)])
    return Table(["Calibration set", *(f"{ratio:.0%}" for ratio in SPIKE_RATIOS)], rows)


Listed = Sequence[tuple[str, PaperItem, Sequence[Shown], Table | None]]


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

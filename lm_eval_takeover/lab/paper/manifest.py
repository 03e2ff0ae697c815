"""What the papers show: `manifest.toml` in the package, and the commands that make it.

A set-up (`pairs`) is two models and the tasks that they answer. An item (`items`) names the set-ups that it is of, the rows of
`compare` that it needs, and where its tables and figures are found among the results:

RUN_DIR/PAIR                     the folder of compare, with leaderboard.json
RUN_DIR/PAIR/reverse             that of rows with a budget by which the base takes over
RUN_DIR/PAIR/analysis/ROWS       what analyze wrote of these rows
RUN_DIR/PAIR/report.html         what report wrote
RUN_DIR/PAIR/thresholds          the calibration files of Table 13
RUN_DIR/index.html, index.md     the papers' items
"""

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.storage.files import read_bounded
from lm_eval_takeover.storage.paths import make_component
from lm_eval_takeover.storage.schema import check

Board = Literal["tasks", "average", "recovery"]
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
    others: dict[str, str] = field(default_factory=dict)  # further guides by name, MODEL[@REVISION][:DTYPE]

    @property
    def summary(self) -> str:
        """Its models, if it is not the bundled pair, its tasks and its note."""
        models = f"{self.base} with {self.guide}. " if self.base else ""
        return f"{models}Tasks: {self.tasks}. {self.note}".strip()


@dataclass(frozen=True)
class Part:
    """A table of an analysis: these columns of the lines whose fields have one of these values."""

    analysis: str
    columns: tuple[str, ...]
    where: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """A table, a figure or a claim. `missing` says what of it cannot be made yet."""

    title: str
    pairs: tuple[str, ...]
    rows: tuple[str, ...] = ()  # of compare; thinking is left out where the set-up has none
    note: str = ""
    rollouts: Literal["base", "guide"] = "base"  # whose texts its analyses read
    printed: str | None = None  # the number of its table in published.json
    secondary: tuple[tuple[str, ...], ...] = ()  # headings and rows of figures by secondary copies
    board: Board | None = None  # which part of the leaderboard it shows
    parts: tuple[Part, ...] = ()
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
    items: dict[str, Item] = field(default_factory=dict)

    def choose(self, pair: str | None, items: str) -> dict[str, dict[str, Item]]:
        """By set-up its items; one that no item names has all. Raises ArgumentError for unknown names, or if nothing is left."""
        names = [name.strip() for name in items.split(",") if name.strip()] or list(self.items)
        given = [("items", name, self.items.keys()) for name in names]
        for option, name, known in [*given, *([("pair", pair, self.pairs.keys())] if pair else [])]:
            if name not in known:
                raise ArgumentError(f"--{option} '{name}' is not in the manifest; {nearest(name, known)}")
        chosen: dict[str, dict[str, Item]] = {}
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
    manifest: Manifest = _parse(Path(__file__).with_name("manifest.toml").read_bytes())
    if own is None:
        return manifest
    try:
        more = _parse(read_bounded(own))
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"--setups '{own}' cannot be read: {error}; expected [pairs.NAME] with base, guide, tasks"
        ) from error
    return Manifest({**manifest.pairs, **more.pairs}, {**manifest.items, **more.items})


def _parse(text: bytes) -> Manifest:
    manifest: Manifest = check(tomllib.loads(text.decode()), Manifest)
    return manifest


def plan_commands(options: argparse.Namespace, pair: PaperPair, items: Mapping[str, Item], folder: Path) -> Iterator[list[str]]:
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
    analyses: dict[str, dict[str, Item]] = {}
    for name, item in items.items():
        if item.analyses:
            analyses.setdefault(item.place, {})[name] = item
    read = [item for those in analyses.values() for item in those.values()]
    for role in dict.fromkeys(item.rollouts for item in read):
        yield ["score", str(folder / role)]
    for role in dict.fromkeys(item.rollouts for item in read if "guides" in item.analyses):
        for name, model in pair.others.items():
            guide, _, dtype = model.partition(":")
            own = [*("--base", str(pair.base or DEMO["base"])), *("--guide", str({**DEMO}.get(guide, guide)))]
            yield ["score", str(folder / role), "--name", name, *own, *(["--guide_dtype", dtype] if dtype else [])]
    for place, those in analyses.items():
        first, out = next(iter(those.values())), folder / "analysis" / place
        only = ",".join(dict.fromkeys(name for item in those.values() for name in item.analyses))
        whose = ["--rollouts", first.rollouts]
        yield ["analyze", *(str(folder / label) for label in first.labels), "--out", str(out), "--only", only, *whose]
        if any(item.report for item in those.values()):
            yield ["report", str(out), "--out", str(folder / "report.html")]
    for task in (pair.calibrate or pair.tasks.split()) if any(item.calibrate for item in items.values()) else ():
        out = folder / "thresholds" / f"{make_component(task)}.json"
        if not out.exists():
            prompts = ["--num_prompts", limit[1]] if limit and options.limit >= 1 else []
            yield ["calibrate", *models, "--task", task, "--diagnostic", *chat, *prompts, "--out", str(out)]

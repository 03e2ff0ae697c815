"""What the papers show: `manifest.toml` in the package.

A set-up (`pairs`) is two models and the tasks that they answer. An item (`items`) names the set-ups that it is of, the rows of
`compare` that it needs, and where its tables and figures are found among the results.
"""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lm_eval_takeover.analysis.guides import STEP
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.storage.paths import make_component
from lm_eval_takeover.storage.schema import check

RATES = "rates_by_task"  # the figure that is drawn of a comparison, not of an analysis
DEMO = "demo"  # the bundled pair stands in for every other one
Board = Literal["tasks", "average", "recovery"]


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
    revisions: tuple[str, ...] = ()  # of the guide, whose checkpoints score the base's texts, too
    others: dict[str, str] = field(default_factory=dict)  # further guides by name, MODEL or MODEL:DTYPE

    @property
    def guides(self) -> dict[str, str]:
        """Further models that score the base's texts, by name."""
        return {**self.others, **{revision: f"{self.guide}@{revision}" for revision in self.revisions}}


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
    printed: str | None = None  # the number of its table in published.json
    board: Board | None = None  # which part of the leaderboard it shows
    parts: tuple[Part, ...] = ()
    figures: tuple[str, ...] = ()
    report: bool = False  # whether it is read in the report
    calibrate: bool = False
    weights: bool = False  # whether the takeovers of its last row are exported, with weights
    missing: str = ""

    @property
    def notes(self) -> list[str]:
        return [*filter(None, (self.note, self.missing and f"Missing: {self.missing}"))]

    @property
    def labels(self) -> list[str]:
        """The folders of its rows that have a journal."""
        return [re.sub("[:=]", "-", row) for row in self.rows if row != "thinking"]

    @property
    def place(self) -> str:
        """Where its analyses lie: they are of its own rows alone."""
        return make_component("+".join(self.labels))

    @property
    def analyses(self) -> list[str]:
        """The analyses that it needs; a report needs one."""
        named = [*(part.analysis for part in self.parts), *self.figures, *(["budget"] if self.report else [])]
        return [name for name in named if name != RATES]

    def is_made(self, pair: "PaperPair") -> bool:
        """Whether the set-up names the checkpoints that it needs."""
        return "checkpoints" not in self.analyses or sum(bool(STEP.search(name)) for name in pair.guides) > 1


@dataclass(frozen=True)
class Manifest:
    """Set-ups and items by name, in the papers' order."""

    pairs: dict[str, PaperPair]
    items: dict[str, Item]

    def choose(self, pair: str | None, items: str) -> dict[str, dict[str, Item]]:
        """By set-up its items. Raises ArgumentError for a name that is not there, and where nothing is left."""
        names = [name.strip() for name in items.split(",") if name.strip()] or list(self.items)
        given = [("items", name, self.items.keys()) for name in names]
        for option, name, known in [*given, *([("pair", pair, self.pairs.keys())] if pair else [])]:
            if name not in known:
                raise ArgumentError(f"--{option} '{name}' is not in the manifest; {nearest(name, known)}")
        chosen: dict[str, dict[str, Item]] = {}
        for name in self.items:
            for own in (DEMO,) if pair == DEMO else self.items[name].pairs:
                if name in names and pair in (None, own):
                    chosen.setdefault(own, {})[name] = self.items[name]
        if not chosen:
            own = ", ".join(name for name, item in self.items.items() if pair in item.pairs)
            raise ArgumentError(f"--pair '{pair}' has none of {', '.join(names)}; it has {own}")
        return chosen


def read_manifest() -> Manifest:
    """The one in the package."""
    text = Path(__file__).with_name("manifest.toml").read_text(encoding="utf-8")
    manifest: Manifest = check(tomllib.loads(text), Manifest)
    return manifest

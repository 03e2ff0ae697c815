"""The paper's tables, cell by cell; lost cells are null, and `~` marks those by secondary copies.

Never a target: its subsets, prompts and verifier are not known.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published.json")
RESULTS = ("3", "7", "8", "9", "10", "11", "12")  # the tables of accuracies and recoveries
_NAMES = ("Model", "Method", "Metric")
_KINDS = (
    ("+ Random", "random"), ("+ Early", "early"), ("+ ", "guided"), ("8B (Thinking)", "guide"), ("(Guide)", "guide"),
    ("(Thinking)", "thinking"), ("Base", "base"),
)  # fmt: skip
Pair = tuple[float | None, float | None]  # (Acc, Pass@8) as shares, None where the source has none or lost it


@dataclass(frozen=True)
class PublishedRow:
    """A row of a table. `tasks` have the source's names."""

    table: str
    model: str
    kind: str
    nominal: float | None  # the printed budget, or the rate by secondary copies
    tasks: dict[str, Pair]
    average: Pair
    recovery: Pair


def read_tables() -> dict[str, Any]:
    """Tables by number, each with `title`, `columns` and `rows` of texts."""
    tables: dict[str, Any] = json.loads(FILE.read_text())["tables"]
    return tables


def read_published_rows() -> list[PublishedRow]:
    """All rows of the tables of results, in the paper's order."""
    tables = read_tables()
    return [_read_row(number, tables[number]["columns"], row) for number in RESULTS for row in tables[number]["rows"]]


def _read_row(number: str, columns: list[str], row: list[str | None]) -> PublishedRow:
    cells = dict(zip(columns, row, strict=True))
    model = next(str(cells.pop(name)) for name in _NAMES if name in cells)
    budget = cells.pop("Budget", None)
    recovery = _share(cells.pop("Recovery (Acc)", None)), _share(cells.pop("Recovery (Pass@8)", None))
    cells.pop("Recovery", None)  # a dash, or lost
    average = _split(cells.pop("Average", None))
    for acc, passed in (("Avg Acc", "Avg Pass@8"), ("Avg ACC", "Avg Pass@8")):
        if acc in cells:
            average = _share(cells.pop(acc)), _share(cells.pop(passed))
    if "Accuracy" in cells:  # Table 12, on one data set
        cells = {"GPQA": f"{cells['Accuracy']} / {cells['Pass@8']}"}
    kind = next((kind for text, kind in _KINDS if text in model), "guided")
    share = re.search(r"~(\d+) %", model)
    nominal = float(budget.lstrip("~")) if budget and budget != "–" else int(share[1]) / 100 if share else None
    tasks = {task: _split(cell) for task, cell in cells.items()}
    return PublishedRow(number, model, kind, nominal, tasks, average, recovery)


def _split(cell: str | None) -> Pair:
    acc, _, passed = (cell or "").partition(" / ")
    return _share(acc), _share(passed)


def _share(cell: str | None) -> float | None:
    """Read `27.6` or `53%` as a share. An empty cell stays empty."""
    text = (cell or "").removesuffix("%")
    return round(float(text) / 100, 6) if text else None

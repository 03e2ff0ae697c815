"""The paper's rows, beside measured ones. Never a target: the paper's subsets, prompts and verifier are not known."""

import re

from lm_eval_takeover.commands.leaderboard.rows import BoardRow
from lm_eval_takeover.results.problems import ACC
from lm_eval_takeover.results.published import read_tables
from lm_eval_takeover.results.summary import Figure, Rates, Summary

RESULTS = ("3", "7", "8", "9", "10", "11", "12")  # the tables of accuracies and recoveries
LOST = "(spike ratio lost in print)"  # the source has an empty bracket there
_NOT_PRINTED = "not printed in the source, or lost there"
_NAMES = ("Model", "Method", "Metric")
_KINDS = (
    ("+ Random", "random"), ("+ Early", "early"), ("+ ", "guided"), ("8B (Thinking)", "guide"), ("(Guide)", "guide"),
    ("(Thinking)", "thinking"), ("Base", "base"),
)  # fmt: skip
AccAndPass = tuple[float | None, float | None]  # (Acc, Pass@8) as shares, None where the source has none or lost it


def read_published_rows() -> list[BoardRow]:
    """All rows of the tables of results, in the paper's order. Tasks have the source's names."""
    tables = read_tables()
    return [_read_row(number, tables[number]["columns"], row) for number in RESULTS for row in tables[number]["rows"]]


def _read_row(number: str, columns: list[str], row: list[str | None]) -> BoardRow:
    cells = dict(zip(columns, row, strict=True))
    model = next(str(cells.pop(name)) for name in _NAMES if name in cells)
    budget = cells.pop("Budget", None)  # as printed, or by secondary copies
    recovery = _share(cells.pop("Recovery (Acc)", None)), _share(cells.pop("Recovery (Pass@8)", None))
    cells.pop("Recovery", None)  # a dash, or lost
    average = _split(cells.pop("Average", None))
    if "Avg ACC" in cells:
        average = _share(cells.pop("Avg ACC")), _share(cells.pop("Avg Pass@8"))
    if "Accuracy" in cells:  # Table 12, on one data set
        cells = {"GPQA": f"{cells['Accuracy']} / {cells['Pass@8']}"}
    kind = next((kind for text, kind in _KINDS if text in model), "guided")
    share = re.search(r"~(\d+) %", model)
    nominal = float(budget.lstrip("~")) if budget and budget != "–" else int(share[1]) / 100 if share else None
    tasks = {task: _summarize(_split(cell)) for task, cell in cells.items()}
    name, source, rates = model.replace("()", LOST), f"published, Table {number}", Rates()
    whole, why = (None, _NOT_PRINTED) if average == (None, None) else (_summarize(average), None)
    return BoardRow(name, kind, source, nominal, rates, tasks, whole, why, _name_pair(recovery, _NOT_PRINTED))


def _summarize(pair: AccAndPass) -> Summary:
    return Summary(_name_pair(pair), Rates(), None, None, 8)


def _name_pair(pair: AccAndPass, why: str | None = None) -> dict[str, Figure]:
    """Acc and Pass@8 without intervals, which the paper does not print."""
    acc, passed = (Figure(value, why=why if value is None else None) for value in pair)
    return {ACC: acc, "pass@8": passed}


def _split(cell: str | None) -> AccAndPass:
    acc, _, passed = (cell or "").partition(" / ")
    return _share(acc), _share(passed)


def _share(cell: str | None) -> float | None:
    """Read `27.6` or `53%` as a share. An empty cell stays empty."""
    text = (cell or "").removesuffix("%")
    return round(float(text) / 100, 6) if text else None

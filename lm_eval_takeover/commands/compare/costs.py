"""What each row cost: tokens, passes of both models and seconds, as its results report them."""

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval_takeover.commands._output import WRITERS, Table
from lm_eval_takeover.commands.compare.rows import PlannedRow
from lm_eval_takeover.results.runs import Run

_COUNTS = ("tokens", "takeovers", "base_passes", "guide_passes")
_COLUMNS = ["Row", "Tokens", "Takeovers", "Base passes", "Guide passes", "Seconds"]


def describe_costs(runs: Mapping[PlannedRow, Sequence[Run]]) -> list[dict[str, Any]]:
    """By row, over all its calls, `tokens`, `takeovers`, `base_passes`, `guide_passes` (null for other model types), `seconds`.

    Seconds of the pair's rows are those of generation, over all attempts; of a thinking model those of whole evaluations.
    """
    costs = []
    for row, of_row in runs.items():
        told = [run.takeover for run in of_row]
        counts = {name: sum(one[name] for one in told) if name in told[0] else None for name in _COUNTS}
        costs.append({"row": row.label, **counts, "seconds": sum(run.seconds or 0.0 for run in of_row)})
    return costs


def write_costs(costs: Sequence[dict[str, Any]], format_name: str) -> str:
    """The same as a table for a terminal, Markdown or LaTeX."""
    lines = [[row["row"], *(_show(row[name]) for name in (*_COUNTS, "seconds"))] for row in costs]
    notes = [
        "A pass is one forward call for one sample; those over prompts are left out. Seconds include interrupted attempts."
    ]
    return WRITERS[format_name](Table(_COLUMNS, lines, notes))


def _show(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"

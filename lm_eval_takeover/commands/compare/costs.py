"""What each row cost: tokens, passes of both models and seconds, as its results report them."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from lm_eval_takeover.commands._tables import WRITERS, Table
from lm_eval_takeover.commands.compare.calls import Call
from lm_eval_takeover.results.runs import find_results

_COUNTS = ("tokens", "takeovers", "base_passes", "guide_passes")
_COLUMNS = ["Row", "Tokens", "Takeovers", "Base passes", "Guide passes", "Seconds"]


def describe_costs(calls: Iterable[Call]) -> list[dict[str, Any]]:
    """By row, over all its calls, `tokens`, `takeovers`, `base_passes`, `guide_passes` (null for other model types), `seconds`.

    Seconds of the pair's rows are those of generation, over all attempts; of a thinking model those of whole evaluations.
    """
    rows: dict[str, dict[str, Any]] = {}
    for call in calls:
        document = json.loads(find_results(call.results)[-1].read_text())
        takeover = document["config"].get("takeover") or {}
        row = rows.setdefault(call.row, {"row": call.row, **dict.fromkeys(_COUNTS), "seconds": 0.0})
        row |= {name: (row[name] or 0) + takeover[name] for name in _COUNTS if takeover.get(name) is not None}
        row["seconds"] += float(takeover.get("seconds", document.get("total_evaluation_time_seconds") or 0.0))
    return list(rows.values())


def write_costs(costs: Sequence[dict[str, Any]], format_name: str) -> str:
    """The same as a table for a terminal, Markdown or LaTeX."""
    lines = [[row["row"], *(_show(row[name]) for name in (*_COUNTS, "seconds"))] for row in costs]
    notes = ["Passes are of one sample over any number of tokens, without those over prompts; seconds of all attempts."]
    return WRITERS[format_name](Table(_COLUMNS, lines, notes))


def _show(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"

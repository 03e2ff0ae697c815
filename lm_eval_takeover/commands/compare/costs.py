"""What each row of a comparison cost: counts and seconds over all its calls."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval_takeover.commands._output import WRITERS, Table
from lm_eval_takeover.results.files import Counts, Run
from lm_eval_takeover.results.kept_rows import ComparedRow
from lm_eval_takeover.runs.tally import COUNTS


def describe_costs(runs: Mapping[ComparedRow, Sequence[Run]]) -> list[dict[str, Any]]:
    """By row, over all its calls: tokens, takeovers and passes, null for other model types, and seconds of generation."""
    costs = []
    for row, of_row in runs.items():
        counts = Counts.add([run.counts for run in of_row])
        spent = [run.seconds for run in of_row if run.seconds is not None]
        seconds = sum(spent) if len(spent) == len(of_row) else None
        costs.append({"row": row.label, **{name: getattr(counts, name) for name in COUNTS}, "seconds": seconds})
    return costs


def write_costs(costs: Sequence[Mapping[str, Any]], followers: Sequence[str], format_name: str, host: str) -> str:
    """The lines of `describe_costs` as a table. `followers` are the rows that follow the guided one."""
    numbers = (*COUNTS, "seconds")
    lines = [[row["row"], *("" if row[name] is None else f"{row[name]:,.0f}" for name in numbers)] for row in costs]
    written = (
        "Takeovers: tokens that the guide wrote. Changed: tokens that differ from the base's draw; empty if that is not known. "
        "Asked: tokens at which the method needs the guide. A pass is one forward call for one sample, without prefill. "
        "Seconds are those of generation; an attempt that was interrupted counts until its last finished sample."
    )
    notes = [name_roles(written, host)]
    notes += [f"{', '.join(followers)}: at the rate that the guided row realized on each task."] if followers else []
    columns = ["Row", *(name.capitalize().replace("_", " ") for name in numbers)]
    return WRITERS[format_name](Table(columns, lines, notes))


def name_roles(text: str, host: str) -> str:
    """A text on a base that writes by default, in the words of a comparison where the guide does."""
    swapped = {"base": "guide", "guide": "base"}
    return re.sub(r"\b(base|guide)\b", lambda at: swapped[at[0]], text) if host == "guide" else text

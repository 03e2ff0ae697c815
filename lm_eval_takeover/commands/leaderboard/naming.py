"""How the rows are called: by their label, else by model and method; equal names by what tells the runs apart."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lm_eval_takeover.results.runs import Run

_ORDER = ("base", "guided", "random", "early", "thinking", "guide", "other")
_TAKEOVER = ("base", "guided", "random", "early")


@dataclass(frozen=True)
class NamedRun:
    """A run with its kind in the table and its name there."""

    run: Run
    kind: str
    name: str


def name_runs(runs: Sequence[tuple[Run, str]]) -> list[NamedRun]:
    """In the order of Table 3: by base, then by kind, then by rate; equal names are told apart by what differs."""

    def place(pair: tuple[Run, str]) -> tuple[Any, ...]:
        run, kind = pair
        family = str(run.settings.get("base")) if kind in _TAKEOVER else "~"
        return family, _ORDER.index(kind), run.counts.realized_rate or 0, run.model, str(run.source)

    named = [NamedRun(run, kind, _name(run, kind)) for run, kind in sorted(runs, key=place)]
    names = [row.name for row in named]
    named = [
        replace(row, name=f"{row.name}, {_show_rate(row.run)}") if names.count(row.name) > 1 else row for row in named
    ]
    names = [row.name for row in named]
    seen = Counter[str]()
    rows = []
    for row in named:
        seen[row.name] += 1
        rows.append(replace(row, name=f"{row.name} [{seen[row.name]}]") if names.count(row.name) > 1 else row)
    return rows


def _name(run: Run, kind: str) -> str:
    verifiers = sorted({result.verifier for result in run.tasks.values()} - {"takeover"})
    return ", ".join([_name_method(run, kind), *verifiers])


def _name_method(run: Run, kind: str) -> str:
    takeover = run.takeover
    if kind in ("guide", "thinking"):
        return f"{run.model} ({kind})"
    if kind in ("random", "early"):
        return f"{run.model} + {kind.capitalize()}"
    if kind != "guided":
        return run.model
    if takeover.get("policy") not in ("disagreement", "entropy"):  # another paper's, or a plug-in's
        return f"{run.model} + {str(takeover.get('policy')).capitalize()}"
    parts = [str(takeover.get("score"))] if takeover.get("score") != "ce" else []
    parts += ["reverse"] if takeover.get("direction") == "reverse" else []
    return " ".join([run.model, "+ Guided", *([f"({', '.join(parts)})"] if parts else [])])


def _show_rate(run: Run) -> str:
    rate = run.counts.realized_rate
    return "rate not known" if rate is None else f"{rate:.1%}"

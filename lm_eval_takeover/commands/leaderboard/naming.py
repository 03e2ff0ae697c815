"""Names the rows: by their label, else by model and method. Equal names get what tells the runs apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm_eval_takeover.results.runs import Run, file_date
from lm_eval_takeover.results.summary import find_nominal_rate

_ORDER = ("base", "guided", "random", "early", "thinking", "guide", "other")
_TAKEOVER = ("base", "guided", "random", "early")
_FIRST = ("rate", "seed", "template", "base", "guide")  # what a name says before all else
_SHORT = {"chat_template": "template", "num_fewshot": "shots", "task_version": "version"}
_LAST = ("scorer", "score_top_p", "tau", "kappa")  # said where nothing else tells runs apart; the nominal rate is for these


@dataclass(frozen=True)
class NamedRun:
    """A run with its kind in the table and its name there."""

    run: Run
    kind: str
    name: str


def name_runs(runs: Sequence[tuple[Run, str]], labels: Mapping[Path, str]) -> tuple[list[NamedRun], list[str]]:
    """Order the runs as in Table 3 (by base, kind and rate) and name them. Returns also a legend of what names leave out.

    `labels` are the names of all runs in a folder.
    """

    def place(pair: tuple[Run, str]) -> tuple[Any, ...]:
        run, kind = pair
        family = str(run.settings.get("base")) if kind in _TAKEOVER else "~"
        return family, _ORDER.index(kind), run.counts.realized_rate or 0, run.model, str(run.source)

    by_folder = {folder.resolve(): label for folder, label in labels.items()}
    rows = [NamedRun(run, kind, _name(run, kind, by_folder)) for run, kind in sorted(runs, key=place)]
    names = [row.name for row in rows]
    legend = []
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            equal = [i for i, row in enumerate(rows) if row.name == name]
            for i, (words, more) in zip(equal, _tell_apart([rows[i].run for i in equal]), strict=True):
                rows[i] = replace(rows[i], name=f"{name} ({words})")
                legend += [f"{rows[i].name}: {more}"] if more else []
    return rows, legend


def _name(run: Run, kind: str, by_folder: Mapping[Path, str]) -> str:
    label = next((by_folder[parent] for parent in run.source.parents if parent in by_folder), run.given_label)
    verifiers = sorted({result.verifier for result in run.tasks.values()} - {"takeover"})
    return ", ".join([label or _name_method(run, kind), *verifiers])


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


def _tell_apart(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """For each run, the differences that its name needs, and the others."""
    shared = set.intersection(*(set(run.tasks) for run in runs))
    settings = [_list_settings(run, sorted(shared)) for run in runs]
    names = sorted({name for each in settings for name in each if name not in _FIRST}, key=lambda name: (name in _LAST, name))
    varying = [name for name in (*_FIRST, *names) if len({each.get(name, "none") for each in settings}) > 1]
    described = [[f"{name} {each.get(name, 'none')}" for name in varying] for each in settings]
    counts = range(1, len(varying) + 1)
    enough = next((n for n in counts if len({tuple(each[:n]) for each in described}) == len(runs)), 0)
    if not enough:
        dates, enough = [f"results of {file_date(run.source)}" for run in runs], 1
        described, varying = [[date, *each] for date, each in zip(dates, described, strict=True)], ["date", *varying]
    legend = [place for place, name in enumerate(varying) if place >= enough and name not in _LAST]
    return [(", ".join(each[:enough]), ", ".join(each[place] for place in legend)) for each in described]


def _list_settings(run: Run, tasks: Sequence[str]) -> dict[str, str]:
    """The settings of a run on these tasks, by short names, to tell it from others."""
    nominal = find_nominal_rate(run.takeover)
    values = {"rate": "none" if nominal is None else f"{nominal:.3g}", "seed": str(run.seed)}
    for task in tasks:
        settings = run.tasks[task].settings
        values |= {_SHORT.get(name, name): _shorten(name, value) for name, value in settings.items()}
    kept = {name: value for name, value in run.settings.items() if name != "rate"}
    return values | {name.removeprefix("model_args."): _shorten(name, value) for name, value in kept.items()}


def _shorten(name: str, value: Any) -> str:
    if name == "chat_template":
        return "off" if value is None else f"on ({str(value)[:6]})"
    text = "none" if value is None else str(value).replace("\n", " ")
    if name in ("base", "guide"):
        text = text.rpartition("/")[2]
    return text if len(text) <= 30 else f"{text[:27]}..."

"""Names the rows: by their label, else by model and method. Equal names get what tells the runs apart."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval_takeover.results.runs import PAIRS, Run, file_date
from lm_eval_takeover.results.summary import find_nominal_rate

_ORDER = ("base", "guided", "random", "early", "thinking", "guide", "other")
_FIRST = ("rate", "seed", "chat_template", "base", "guide")  # what a name says before all else
_LAST = ("scorer", "score_top_p", "tau", "kappa")  # said where nothing else tells runs apart; the nominal rate is for these


def name_runs(runs: Sequence[Run], labels: Mapping[Path, str]) -> tuple[list[Run], list[str]]:
    """Order the runs as in Table 3 (by base, kind and rate) and name them. Returns also lines on what names leave out.

    `labels` are the names of all runs in a folder.
    """

    def place(run: Run) -> tuple[Any, ...]:
        family = str(run.settings.get("base")) if run.kind in ("base", *PAIRS) else "~"
        return family, _ORDER.index(run.kind), run.counts.realized_rate or 0, run.model, str(run.source)

    by_folder = {folder.resolve(): label for folder, label in labels.items()}
    rows = [replace(run, name=_name(run, by_folder)) for run in sorted(runs, key=place)]
    names = [row.name for row in rows]
    lines = []
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            equal = [i for i, row in enumerate(rows) if row.name == name]
            for i, (words, more) in zip(equal, _tell_apart([rows[i] for i in equal]), strict=True):
                rows[i] = replace(rows[i], name=f"{name} ({words})")
                lines += [f"{rows[i].name}: {more}"] if more else []
    return rows, lines


def _name(run: Run, by_folder: Mapping[Path, str]) -> str:
    label = next((by_folder[parent] for parent in run.source.parents if parent in by_folder), run.given_label)
    verifiers = sorted({result.verifier for result in run.tasks.values()} - {"takeover"})
    return ", ".join([label or _name_method(run), *verifiers])


def _name_method(run: Run) -> str:
    takeover, kind = run.takeover, run.kind
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
    """Of each run as many differences as tell all of them apart, else the date; and the other differences."""
    shared = set.intersection(*(set(run.tasks) for run in runs))
    settings = [_list_settings(run, sorted(shared)) for run in runs]
    names = sorted({name for each in settings for name in each if name not in _FIRST}, key=lambda name: (name in _LAST, name))
    varying = [name for name in (*_FIRST, *names) if len({each.get(name, "none") for each in settings}) > 1]
    described = [[f"{name} {each.get(name, 'none')}" for name in varying] for each in settings]
    for count in range(1, len(varying) + 1):
        words = [", ".join(each[:count]) for each in described]
        if len(set(words)) == len(runs):
            left = [place for place in range(count, len(varying)) if varying[place] not in _LAST]
            return [(word, ", ".join(each[place] for place in left)) for word, each in zip(words, described, strict=True)]
    return [(f"results of {file_date(run.source)}", ", ".join(each)) for run, each in zip(runs, described, strict=True)]


def _list_settings(run: Run, tasks: Sequence[str]) -> dict[str, str]:
    """The settings of a run on these tasks, by short names, to tell it from others."""
    nominal = find_nominal_rate(run.takeover)
    values = {"rate": "none" if nominal is None else f"{nominal:.3g}", "seed": str(run.seed)}
    for task in tasks:
        values |= {name: _shorten(name, value) for name, value in run.tasks[task].settings.items()}
    kept = {name: value for name, value in run.settings.items() if name != "rate"}
    return values | {name.removeprefix("model_args."): _shorten(name, value) for name, value in kept.items()}


def _shorten(name: str, value: Any) -> str:
    if name == "chat_template":
        return "off" if value is None else f"on ({str(value)[:6]})"
    text = "none" if value is None else str(value).replace("\n", " ")
    if name in ("base", "guide"):
        text = text.rpartition("/")[2]
    return text if len(text) <= 30 else f"{text[:27]}..."

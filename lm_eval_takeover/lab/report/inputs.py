"""Reads what `analyze` and `effects` left: an analysis folder with its runs, and the largest effects of single takeovers.

Figures, those of `compare` too, become safe parts of a page, in its own colours.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, TypedDict
from xml.etree import ElementTree

from markupsafe import Markup

from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.lab.analyze.tables import INDEX, analyze
from lm_eval_takeover.lab.measures.catalogue import COLUMNS
from lm_eval_takeover.lab.measures.effects import EXAMPLES
from lm_eval_takeover.results.documents import Fields, read_document, read_rows
from lm_eval_takeover.runs.layout import SAMPLES, find_run_dirs, list_ranks
from lm_eval_takeover.runs.run_reader import Answered, RunReader, number_documents, read_run_folder
from lm_eval_takeover.storage.files import read_bounded

CAPTIONS: Mapping[str, str] = {
    "concentration": "How unevenly the score lies on the tokens of a sample",
    "lorenz": "Lorenz curves: the share of the score on the smallest scores",
    "position": "Where in a sample the largest 1 % of the scores stand",
    "overlap": "How far the largest scores coincide with the largest entropies",
    "planning": "How often planning and execution tokens stand at peaks and takeovers (1: as often as among all tokens)",
    "failure": "Whether the largest scores predict a wrong answer",
    "signals": "The largest scores of correct and of incorrect samples",
    "budget": "Accuracy against the share of tokens taken over",
    "rates": "Realized rate of each problem",
    "flips": "Problems that only a run solves (rescued), or only the base (harmed)",
    "cross": "Cross-sampling: accuracy against the share that is replaced",
    "frontier": "Accuracy against cost, by method; rest the pointer on a point to see its name",
    "places": "Where in an answer the takeovers stand",
    "overview": "Accuracy of each run with its 95 % interval",
    "ranks": "Rank of the tokens that takeovers put in, under the model that writes by default",
}
_LARGEST = 2**24  # bytes of a figure
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_ELEMENTS = {"svg", "g", "defs", "path", "use", "rect", "clipPath", "text", "tspan", "line", "circle", "title"}
_ATTRIBUTES = {
    *("id", "d", "x", "y", "width", "height", "viewBox", "transform", "fill", "stroke", "stroke-width", "opacity"),
    *("stroke-dasharray", "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-opacity", "fill-opacity"),
    *("clip-path", "text-anchor", "font-size", "x1", "x2", "y1", "y2", "cx", "cy", "r"),
}
_INKS = {"#000000": "currentColor", "#333333": "currentColor", "#262626": "currentColor", "#ffffff": "none"}
EFFECT_CAPTIONS = {
    "effect_summary": "Mean effect of takeovers and of controls",
    "effects": "How many positions have which effect",
    "effect_by_score": "Mean effect by tenth of each score",
    "effect_auroc": "How well each score tells positions with a large effect",
}
_POSITION: dict[str, type] = {"task": str, **dict.fromkeys(("doc_id", "sample", "position"), int)}
_POSITION |= {**dict.fromkeys(("effect", "low", "high"), float), "before": str}


def find_analysis(folder: Path, tokenizer: str | None) -> Path:
    """The folder if `analyze` wrote it; for runs its `analysis` folder, which is made again. Raises TakeoverErrors."""
    if (folder / INDEX).exists():
        return folder
    if not any(list_ranks(path) for path in find_run_dirs(folder)):
        raise ArgumentError(f"'{folder}' holds no {INDEX} of analyze and no run; give one, or a folder of compare")
    analyze([folder], folder / "analysis", tokenizer=tokenizer)
    return folder / "analysis"


class IndexedRun(TypedDict):
    """A run in INDEX; `path` is relative to it where that is possible."""

    name: str
    path: str


@dataclass(frozen=True)
class Analysis:
    """An analysis folder with its runs by name; `cannot_show` has the reason for each analysis that it is without."""

    folder: Path
    runs: Mapping[str, RunReader]
    names: list[str]
    cannot_show: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path) -> "Analysis":
        """Raises ResultsError for a folder that `analyze` did not write, RunDirError for a run that is not there."""
        index = read_document(folder / INDEX, "`lm-eval-takeover analyze`")
        runs = {run["name"]: folder / run["path"] for run in index.require("runs", list[IndexedRun])}
        if not runs:
            index.fail("runs", "names no runs; run lm-eval-takeover analyze again")
        names = [name for name in COLUMNS if name in index.require("analyses", list[str])]
        cannot_show = index.require("cannot_show", dict[str, str])
        readers = {name: read_run_folder(path) for name, path in runs.items()}
        for run in readers.values():
            run.check_finished()
        number_documents([*readers.values()])  # as `analyze` did
        return cls(folder, readers, names, cannot_show)

    @property
    def base(self) -> str | None:
        return next((name for name, run in self.runs.items() if run.written_by == "base"), None)

    @cached_property
    def boards(self) -> list[Fields]:
        """The leaderboard that `compare` kept, where the runs are its rows. Raises ResultsError."""
        return [read_document(path, "`lm-eval-takeover compare`") for path in self.find_kept("leaderboard.json")]

    @cached_property
    def board(self) -> dict[str, Fields]:
        """Its rows by name; empty where `rescore` has judged their texts again since."""
        rows = [
            Fields(board.place, row, "rows") for board in self.boards for row in board.require("rows", list[dict[str, Any]])
        ]
        by_name = {row.require("model", str): row for row in rows}
        tasks = {name: row.require("tasks", dict[str, dict[str, Any]], {}) for name, row in by_name.items()}
        shown = ((name, task, each.get("acc")) for name, own in tasks.items() for task, each in own.items())
        return by_name if all(self._is_present(*one) for one in shown) else {}

    def _is_present(self, name: str, task: str, accuracy: Any) -> bool:
        """Whether this is the Acc of a run by its present verdicts; True where nothing is known."""
        if name not in self.runs or not isinstance(accuracy, int | float):
            return True
        own = [one.correct for one in self.runs[name].answered if one.task == task and one.outcome is not None]
        return not own or math.isclose(accuracy, sum(own) / len(own))

    def find_kept(self, name: str) -> list[Path]:
        """The file of this name in the one folder of `compare` of which all runs are rows, if it is there."""
        paths = {run.folder.absolute().parent.parent / name for run in self.runs.values()}
        rows = [run for run in self.runs.values() if run.folder.name == SAMPLES]
        return [path for path in paths if len(rows) == len(self.runs) and len(paths) == 1 and path.exists()]

    def read_table(self, name: str) -> list[Fields]:
        """The lines of an analysis that are of these runs; none where it was not made. Raises ResultsError."""
        path = self.folder / f"{name}.json"
        rows = read_rows(path, "`lm-eval-takeover analyze`", dict[str, Any]) if name in self.names else []
        lines = [line for row in rows if (line := Fields(f"'{path}'", row)).require("run", str) in self.runs]
        for line in lines:
            if not self._is_present(line.require("run", str), line.require("task", str), line.get("acc")):
                raise ResultsError(
                    f"{line.place} has other verdicts than its runs have now; run lm-eval-takeover analyze again"
                )
        return lines

    @property
    def compared(self) -> str | None:
        """The run that is held against the base's first: one with a gate, else any other."""
        others = [name for name in self.runs if name != self.base]
        gated = [name for name in others if self.runs[name].takeover.get("window") is not None]
        mixed = [name for name in others if self.runs[name].written_by is None]
        return next(iter([*gated, *mixed, *others]), None)

    @cached_property
    def samples(self) -> dict[str, dict[tuple[str, int], list[Answered]]]:
        by_run: dict[str, dict[tuple[str, int], list[Answered]]] = {}
        for name, run in self.runs.items():
            by_run[name] = {problem: list(of) for problem, of in groupby(run.answered, lambda one: one.name[:2])}
        return by_run

    @cached_property
    def problems(self) -> list[tuple[str, int]]:
        """`(task, document)` of all problems of any run, in order."""
        return sorted({key for problems in self.samples.values() for key in problems})


def read_effects(folder: Path) -> dict[str, Any]:
    """What the page shows of the largest effects of either sign. Raises ArgumentError for what `effects` did not write."""
    path = folder / EXAMPLES
    try:
        examples = json.loads(read_bounded(path))
        positions = [_check_position(position) for position in examples["positions"]]
        told = {name: str(examples[name]) for name in ("run", "host", "donor", "after")} | {"positions": positions}
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ArgumentError(
            f"--effects '{folder}' cannot be read: {error}; expected the --out of an effects command that has ended"
        ) from error
    figures = [(name, caption, read_figure(folder / f"{name}.svg")) for name, caption in EFFECT_CAPTIONS.items()]
    return told | {"figures": figures}


def _check_position(position: dict[str, Any]) -> dict[str, Any]:
    sides = {
        role: {
            "token": str(position[role]["token"]),
            "behind": [(str(text["text"]), bool(text["correct"])) for text in position[role]["behind"]],
        }
        for role in ("host", "donor")
    }
    return {name: kind(position[name]) for name, kind in _POSITION.items()} | sides


def read_figure(path: Path) -> Markup:
    """A figure's file as `clean_figure` has it. Raises ArgumentError where it is no SVG."""
    try:
        return clean_figure(read_bounded(path, _LARGEST), path.stem, path.stem)
    except (OSError, ElementTree.ParseError, RecursionError) as error:
        raise ArgumentError(f"'{path}' cannot be read: {error}; run lm-eval-takeover analyze again") from error
    except ValueError as error:
        raise ArgumentError(f"'{path}' is not an SVG file; run lm-eval-takeover analyze again") from error


def clean_figure(svg: bytes, prefix: str, name: str) -> Markup:
    """An SVG to stand inside a page: known elements and attributes only, no styles or scripts, ids that begin with `prefix`."""
    kept = _keep(ElementTree.fromstring(svg), prefix)
    if kept is None or kept.tag != "svg":
        raise ValueError("no svg element")
    for size in ("width", "height"):
        kept.attrib.pop(size, None)  # as wide as its column
    kept.attrib |= {"role": "img", "aria-label": CAPTIONS.get(name, name)}
    return Markup(ElementTree.tostring(kept, encoding="unicode"))


def _keep(element: ElementTree.Element, prefix: str) -> ElementTree.Element | None:
    if not isinstance(element.tag, str):  # a comment
        return None
    name = element.tag.removeprefix(f"{{{_SVG}}}")
    if name not in _ELEMENTS:
        return None
    kept = ElementTree.Element(name, dict(_keep_attributes(element, prefix)))
    kept.text, kept.tail = element.text, element.tail
    for child in element if name != "title" else ():  # in a page, elements inside a title would be those of HTML
        if (inner := _keep(child, prefix)) is not None:
            kept.append(inner)
    return kept


def _keep_attributes(element: ElementTree.Element, prefix: str) -> list[tuple[str, str]]:
    attributes = {name: value for name, value in element.attrib.items() if name != "style"}
    for declaration in element.get("style", "").split(";"):  # a policy against styles in attributes would drop them
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font" and (size := re.search(r"([\d.]+)px", value)):
            name, value = "font-size", size[1]
        attributes[name] = value
    kept = []
    for name, value in attributes.items():
        if name in ("href", f"{{{_XLINK}}}href") and value.startswith("#"):
            kept.append(("href", f"#{prefix}-{value[1:]}"))
        elif name == "id":
            kept.append(("id", f"{prefix}-{value}"))
        elif name in _ATTRIBUTES and (inside := re.fullmatch(r"url\(#([\w.-]+)\)", value)):
            kept.append((name, f"url(#{prefix}-{inside[1]})"))
        elif name in _ATTRIBUTES and "url" not in value.lower():  # any other names something outside of the figure
            kept.append((name, _INKS.get(value.lower(), value)))
    return kept

"""Reads what `analyze` and `effects` left: an analysis folder with its runs, and the largest effects of single takeovers."""

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.analysis.catalogue import COLUMNS
from lm_eval_takeover.lab.analyze.command import add_options
from lm_eval_takeover.lab.analyze.tables import INDEX, analyze
from lm_eval_takeover.lab.effects.tables import EXAMPLES
from lm_eval_takeover.lab.report.figures import read_figure
from lm_eval_takeover.runs.layout import find_run_dirs, list_ranks
from lm_eval_takeover.runs.run_reader import Answered, RunReader, read_run_folder
from lm_eval_takeover.storage.regular_files import read_bounded

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
    out = folder / "analysis"
    parser = ArgumentParser()
    add_options(parser)
    words = ["--out", str(out), *(["--tokenizer", tokenizer] if tokenizer else []), "--", str(folder)]
    analyze(parser.parse_args(words))
    return out


@dataclass(frozen=True)
class Analysis:
    """An analysis folder with its runs by name; `cannot_show` has the reason for each analysis that it is without."""

    folder: Path
    runs: Mapping[str, RunReader]
    names: list[str]
    cannot_show: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path) -> "Analysis":
        """Raises ArgumentError for a folder that `analyze` did not write, RunDirError for a run that is not there."""
        path = folder / INDEX
        try:
            index = json.loads(read_bounded(path))
            runs = {str(run["name"]): folder / run["path"] for run in index["runs"]}
            names = [name for name in COLUMNS if name in index["analyses"]]
            cannot_show = {str(name): str(reason) for name, reason in index["cannot_show"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArgumentError(
                f"'{path}' cannot be read as an analysis: {error}; expected the folder that lm-eval-takeover analyze had as --out"
            ) from error
        if not runs:
            raise ArgumentError(f"'{path}' names no runs; run lm-eval-takeover analyze again")
        readers = {name: read_run_folder(path) for name, path in runs.items()}
        for run in readers.values():
            run.check_finished()
        return cls(folder, readers, names, cannot_show)

    @property
    def base(self) -> str | None:
        """The run of the base alone, where there is one."""
        return next((name for name, run in self.runs.items() if run.written_by == "base"), None)

    @property
    def guide(self) -> str | None:
        return next((name for name, run in self.runs.items() if run.written_by == "guide"), None)

    @property
    def compared(self) -> str | None:
        """The run that is held against the base's first: one with a gate, else any other."""
        others = [name for name in self.runs if name != self.base]
        gated = [name for name in others if self.runs[name].takeover.get("window") is not None]
        mixed = [name for name in others if self.runs[name].written_by is None]
        return next(iter([*gated, *mixed, *others]), None)

    @cached_property
    def samples(self) -> dict[str, dict[tuple[str, int], list[Answered]]]:
        """By run and problem its samples, in order."""
        by_run: dict[str, dict[tuple[str, int], list[Answered]]] = {}
        for name, run in self.runs.items():
            problems = by_run.setdefault(name, {})
            for sample in run.answered:
                problems.setdefault((sample.task, sample.doc_id), []).append(sample)
        return by_run

    @cached_property
    def problems(self) -> list[tuple[str, int]]:
        """`(task, document)` of all problems of any run, in order."""
        return sorted({key for problems in self.samples.values() for key in problems})


@dataclass(frozen=True)
class Effects:
    """`positions` have the largest effects of either sign, with the texts that follow both tokens."""

    run: str
    after: str
    positions: list[dict[str, Any]]
    figures: list[tuple[str, str, Markup]]


def read_effects(folder: Path) -> Effects:
    """Raises ArgumentError for a folder that `effects` did not write."""
    path = folder / EXAMPLES
    try:
        examples = json.loads(read_bounded(path))
        positions = [_check_position(position) for position in examples["positions"]]
        run, after = str(examples["run"]), str(examples["after"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ArgumentError(
            f"--effects '{folder}' cannot be read: {error}; expected what lm-eval-takeover effects was given as --out"
        ) from error
    figures = [(name, caption, read_figure(folder / f"{name}.svg")) for name, caption in EFFECT_CAPTIONS.items()]
    return Effects(run, after, positions, figures)


def _check_position(position: dict[str, Any]) -> dict[str, Any]:
    """The fields that the page shows, in their types."""
    sides = {
        role: {
            "token": str(position[role]["token"]),
            "behind": [(str(text["text"]), bool(text["correct"])) for text in position[role]["behind"]],
        }
        for role in ("host", "donor")
    }
    return {name: kind(position[name]) for name, kind in _POSITION.items()} | sides

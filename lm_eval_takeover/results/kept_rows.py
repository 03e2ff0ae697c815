"""The rows that `compare` left in its folder: their names, their order, and where the results of each are."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path

from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.results.documents import read_document, read_rows
from lm_eval_takeover.results.files import Run, find_results, read_runs
from lm_eval_takeover.results.problems import WRITER
from lm_eval_takeover.runs.identity import find_row
from lm_eval_takeover.runs.layout import ROWS, SAMPLES
from lm_eval_takeover.storage.files import join_inside, write_text

DRAFTED = "drafted"  # the guide's own text with drafts of the base: a point where passes or time are counted


@dataclass(frozen=True, eq=False)
class ComparedRow:
    """One row of a comparison, as its folder keeps it."""

    label: str  # names the row's folder
    name: str
    # The realized rate that the budget parameter is solved for; None for a model alone, for one set by hand, where it `follows`.
    rate: float | None = None
    follows: bool = False  # it takes the rate that the guided row realizes on each task
    word: str = ""  # the method, as `calibrate --methods` takes it
    covers: float | None = None  # a larger rate that the method cannot reach; this row is the nearest one
    host: str | None = None  # None of a model alone
    donor: str | None = None
    mixes: bool = False  # the policy writes no token alone
    results: list[str] = field(default_factory=list)  # of each call the folder, in that of the comparison; none before it ran

    @property
    def family(self) -> str:
        """The name of a curve: of rows that differ only in their rate."""
        return self.word or self.name


def list_kept_rows(folder: Path) -> list[ComparedRow]:
    """In the order of `--rows`; empty where no comparison has ended in this folder. Raises ResultsError, ArgumentError."""
    if not (folder / ROWS).is_file():
        return []
    rows: list[ComparedRow] = read_rows(folder / ROWS, "`lm-eval-takeover compare`", ComparedRow)
    try:
        for row in rows:
            for path in (row.label, *row.results):
                join_inside(folder, path)
    except ValueError as error:
        raise ArgumentError(f"'{folder}': {error}") from None
    return rows


def read_kept_rows(folder: Path) -> dict[ComparedRow, Run]:
    """The rows of this folder with their runs. Raises ResultsError, ArgumentError."""
    rows = list_kept_rows(folder)
    if not rows:
        raise ArgumentError(f"'{folder}' has no {ROWS}, which `compare --run_dir` writes as it ends; expected such a folder")
    runs = {row: read_runs(find_row_results(folder, row))[0] for row in rows}
    if empty := [row.label for row, own in runs.items() if not own]:
        raise ResultsError(f"'{folder}': the results of {empty[0]} hold no task; give the command of compare again")
    return {row: own[0] for row, own in runs.items()}


def find_row_results(folder: Path, row: ComparedRow) -> list[Path]:
    """The last results of each call (before them stand those of another --limit, if one was stopped), and those of `rescore`.

    In the row's run_dir are also what `rescore` wrote of rows that earlier commands had there: others by their identity.
    """
    last = [find_results(folder / path)[-1] for path in row.results]
    rescored = sorted((folder / row.label / SAMPLES).rglob("results_*.json"))
    return last + [file for file in rescored if find_row(file, _read_identities(file)) is not None]


def _read_identities(file: Path) -> dict[str, str | None]:
    """By task, as a results file of ours has them."""
    counted = read_document(file, WRITER).inside_or_empty("config").inside_or_empty("takeover").inside_or_empty("per_task")
    return {task: counted.inside(task).get("identity") for task in counted}


def write_kept_rows(folder: Path, rows: Iterable[ComparedRow]) -> None:
    kept = [{each.name: getattr(row, each.name) for each in fields(ComparedRow)} for row in rows]
    write_text(folder / ROWS, json.dumps(kept, indent=2) + "\n")

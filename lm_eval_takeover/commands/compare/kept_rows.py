"""ROWS in a folder of `compare`: its rows, and where their results are. `frontier` reads it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from lm_eval_takeover.commands._output import write_json
from lm_eval_takeover.commands.compare.rows import PlannedRow
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.fields import read_rows
from lm_eval_takeover.results.runs import Run, find_results, read_run
from lm_eval_takeover.runs.layout import ROWS
from lm_eval_takeover.storage.paths import join_inside
from lm_eval_takeover.storage.whole_files import write_text


class KeptRow(TypedDict):
    """Of `PlannedRow` what areas and pictures need, and the folders of its results in the comparison's own."""

    label: str
    name: str
    rate: float | None
    follows: bool
    word: str
    covers: float | None
    host: str | None
    donor: str | None
    mixes: bool
    results: list[str]


_FIELDS = tuple(name for name in KeptRow.__annotations__ if name != "results")


def write_kept_rows(run_dir: Path, rows: Mapping[PlannedRow, Sequence[Run]]) -> None:
    paths = {row: [str(run.source.parent.relative_to(run_dir)) for run in runs] for row, runs in rows.items()}
    lines = [{name: getattr(row, name) for name in _FIELDS} | {"results": own} for row, own in paths.items()]
    write_text(run_dir / ROWS, write_json(lines))


def read_kept_rows(folder: Path) -> dict[PlannedRow, list[Run]]:
    """The rows that `compare` left in this folder, with the runs of their calls. Raises ResultsError, ArgumentError."""
    if not (folder / ROWS).exists():
        raise ArgumentError(f"'{folder}' has no {ROWS}; give the compare command that made it again")
    rows = {}
    for row in read_rows(folder / ROWS, "`lm-eval-takeover compare`", KeptRow):
        try:
            results = [find_results(join_inside(folder, path))[-1] for path in row["results"]]
        except ValueError as error:
            raise ArgumentError(f"'{folder}': {error}") from None
        rows[PlannedRow(**{name: row[name] for name in _FIELDS})] = [read_run(path) for path in results]
    return rows

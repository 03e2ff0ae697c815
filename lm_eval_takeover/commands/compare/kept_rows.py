"""ROWS in a folder of `compare`: its rows, and where their results are. `frontier` reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from lm_eval_takeover.commands._output import write_json
from lm_eval_takeover.commands.compare.rows import ComparedRow
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.fields import read_rows
from lm_eval_takeover.results.runs import Run, find_results, read_run
from lm_eval_takeover.runs.layout import ROWS
from lm_eval_takeover.storage.paths import join_inside
from lm_eval_takeover.storage.whole_files import write_text


@dataclass(frozen=True, eq=False)
class KeptRow(ComparedRow):
    """A row with the folders of its results in the comparison's own."""

    results: list[str] = field(default_factory=list)


def write_kept_rows(run_dir: Path, rows: Mapping[ComparedRow, Sequence[Run]]) -> None:
    paths = {row: [str(run.source.parent.relative_to(run_dir)) for run in runs] for row, runs in rows.items()}
    kept = [
        {each.name: getattr(row, each.name) for each in fields(ComparedRow)} | {"results": own} for row, own in paths.items()
    ]
    write_text(run_dir / ROWS, write_json(kept))


def read_kept_rows(folder: Path) -> dict[ComparedRow, list[Run]]:
    """The rows that `compare` left in this folder, with the runs of their calls. Raises ResultsError, ArgumentError."""
    if not (folder / ROWS).exists():
        raise ArgumentError(f"'{folder}' has no {ROWS}; give the compare command that made it again")
    rows: list[KeptRow] = read_rows(folder / ROWS, "`lm-eval-takeover compare`", KeptRow)
    try:
        paths = {row: [join_inside(folder, path) for path in row.results] for row in rows}
    except ValueError as error:
        raise ArgumentError(f"'{folder}': {error}") from None
    return {row: [read_run(find_results(path)[-1]) for path in own] for row, own in paths.items()}

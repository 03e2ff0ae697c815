"""Names of the files in a run_dir.

    RUN_DIR/journal-000.sqlite     the samples that rank 0 has finished, and all that is measured on samples
    RUN_DIR/journal-000.lock       held while rank 0, or `lm-eval-takeover score`, is at work
    RUN_DIR/traces/000-000001.parquet
    RUN_DIR/prompts.parquet        what was asked; prompts.lock is held while a rank writes it
    RUN_DIR/scores/000001.parquet  both models along the stored samples, once `lm-eval-takeover score` wrote it
    RUN_DIR/damaged-1/             what was not sound and was moved aside

Files of other names are left alone.
"""

import contextlib
import itertools
import json
import os
import re
from pathlib import Path

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.storage.files import read_bounded

TRACES = "traces"
PROMPTS, PROMPTS_LOCK = "prompts.parquet", "prompts.lock"
SCORES = "scores"
SAMPLES = "samples"  # the run_dir of a row of `compare`, inside its folder
ROWS = "rows.json"  # in a folder of `compare`: its rows, and where their results are
ROW = "row.json"  # in the folder of a row: `{task: identity}` of what the row is made of
_JOURNAL_NAME = re.compile(r"journal-(\d{3,})\.sqlite")


def journal_path(folder: Path, rank: int) -> Path:
    return folder / f"journal-{rank:03d}.sqlite"


def lock_path(folder: Path, rank: int) -> Path:
    return folder / f"journal-{rank:03d}.lock"


def find_run_dirs(path: Path) -> list[Path]:
    """The run_dirs that a path stands for: that of a row of `compare`, those of its last rows, else the path itself."""
    if list_ranks(path):
        return [path]
    rows = [path, *_list_rows(path)] if path.is_dir() else []
    return [row / SAMPLES for row in rows if list_ranks(row / SAMPLES)] or [path]


def _list_rows(folder: Path) -> list[Path]:
    """The folders of the rows of the last `compare` that ended here, in its order; all folders where none has."""
    inside = sorted(folder.iterdir())
    try:
        labels = [row["label"] for row in json.loads(read_bounded(folder / ROWS))]
    except (OSError, ValueError, TypeError, KeyError):
        return inside
    return sorted((row for row in inside if row.name in labels), key=lambda row: labels.index(row.name))


def find_run_dir(path: Path) -> Path:
    """The one run_dir that a path stands for. Raises RunDirError where there are several."""
    folders = find_run_dirs(path)
    if folders == [path] and not list_ranks(path):
        below = {journal.parent for depth in range(1, 4) for journal in path.glob("*/" * depth + journal_path(Path(), 0).name)}
        folders = sorted(below) if len(below) > 1 else folders
    if len(folders) > 1:
        paths = ", ".join(f"'{folder.parent if folder.name == SAMPLES else folder}'" for folder in folders)
        raise RunDirError(f"run_dir='{path}' holds {len(folders)} runs; give one of {paths}")
    return folders[0]


def list_ranks(folder: Path) -> list[int]:
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := _JOURNAL_NAME.fullmatch(name)))


def list_journals(folder: Path) -> list[Path]:
    return [journal_path(folder, rank) for rank in list_ranks(folder)]


def list_parts(folder: Path, rank: int) -> list[Path]:
    """The parts of a rank, the oldest first."""
    return sorted(path for path in (folder / TRACES).glob(f"{rank:03d}-*.parquet") if path.stem.partition("-")[2].isdecimal())


def make_damaged_folder(folder: Path) -> Path:
    """The next `damaged-N`."""
    for number in itertools.count(1):
        with contextlib.suppress(FileExistsError):  # another rank may make one at the same time
            (aside := folder / f"damaged-{number}").mkdir()
            break
    return aside

"""What commands print and write: tables in every format, and files that are written whole or not at all.

`write_terminal`, `write_markdown` and `write_latex` take a `Table` of texts; `write_csv` and `write_json` take values. A number
is never cut. Files: `check_writable` and `check_replaceable` before the work, `write_file` or `writing` after it; what cannot be
written is an ArgumentError in one form of words. Texts of others are escaped here.
"""

import contextlib
import csv
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from pathlib import Path
from textwrap import wrap
from typing import Any

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_csv, for_latex, for_markdown, for_terminal
from lm_eval_takeover.storage.files import Lock, Locked, make_folder, open_input, sync_folder, write_text, written

_GAP = 2  # blanks between two columns
_NAME = 14  # a name is folded to no less than that
_BREAKS = re.compile(r"(?<=[ _+/,:-])(?=\S)")  # where a name may be folded


@dataclass(frozen=True)
class Table:
    """Texts: the first `names` columns are names, the others figures, shown where a row has one. `notes` stand below."""

    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    names: int = 1

    def shown(self, show: Callable[[str], str]) -> "Table":
        """The columns with any text, every text as `show` has it: names are other people's."""
        kept = [at < self.names or not self.rows or any(row[at] for row in self.rows) for at in range(len(self.columns))]
        columns, *rows = ([show(cell) for cell in compress(row, kept)] for row in (self.columns, *self.rows))
        return Table(columns, rows, [show(note) for note in self.notes], self.names)


def write_terminal(table: Table, width: int | None = None) -> str:
    """As wide as the terminal is, 80 columns in a pipe. Where that is too narrow, headings take two lines and cells break at
    their slashes, then the columns are split over several tables. What does not fit beside the names alone is folded further.
    """
    from rich.console import Console

    width = width or Console().width or 80  # COLUMNS=0: not known
    table = table.shown(partial(for_terminal, lines=False))
    lines = []
    for part in _fit(table, width) if table.rows else []:
        lines += [*_draw(part, table.names), ""]
    for note in table.notes:
        lines += wrap(note, max(width, 20), break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _fit(table: Table, width: int) -> list[list[list[str]]]:
    """The columns of each table that these are split over, headings first."""
    columns = [list(column) for column in zip(table.columns, *table.rows, strict=True)]
    if _width(columns) <= width:
        return [columns]
    fold = partial(_fold_name, most=max(_NAME, width // 4))
    names = [_fold_heading(heading, [*map(fold, cells)]) for heading, *cells in columns[: table.names]]
    parts = [[*names]]
    for heading, *cells in columns[table.names :]:
        folded = _fold_heading(heading, [cell.replace(" / ", "\n") for cell in cells])
        if _width([*names, folded]) > width:
            folded = [heading.replace(" ", "\n"), *map(_fold_figure, cells)]
        if len(parts[-1]) > len(names) and _width([*parts[-1], folded]) > width:
            parts.append([*names])
        parts[-1].append(folded)
    return parts


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(_longest, cells)) for cells in columns) + _GAP * (len(columns) - 1)


def _longest(cell: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, cell.split("\n")))


def _fold_heading(heading: str, cells: Sequence[str]) -> list[str]:
    """The column with its heading in two lines at most, which are as narrow as the cells where they can be."""
    words, least = re.split(" (?!%)", heading.replace(" / ", "/")), max(map(_longest, cells))
    folds = [f"{' '.join(words[:at])}\n{' '.join(words[at:])}".strip() for at in range(len(words))]
    return [min(folds, key=lambda fold: max(_longest(fold), least)), *cells]


def _fold_figure(cell: str) -> str:
    """`27.6 / 67.0 (25.1–30.2, 60.0–72.4)` on several lines, each number whole; of words a line each."""
    if not re.search(r"\d", cell):
        return cell.replace(" ", "\n")
    return cell.replace(" / ", "\n").replace(" (", "\n(").replace(", ", ",\n").replace(" to ", "\nto ")


def _fold_name(cell: str, most: int) -> str:
    lines = [""]
    for piece in _BREAKS.split(cell):
        if _longest(lines[-1] + piece.rstrip()) <= most or not lines[-1]:
            lines[-1] += piece
        else:
            lines.append(piece)
    return "\n".join(line.rstrip() for line in lines)


def _draw(columns: Sequence[Sequence[str]], names: int) -> list[str]:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for place, (heading, *_) in enumerate(columns):
        shown.add_column(Text(heading), justify="right" if place >= names else "left", no_wrap=True)
    for row in zip(*(cells for _, *cells in columns), strict=True):
        shown.add_row(*map(Text, row))
    stream = io.StringIO()
    Console(file=stream, width=_width(columns) + _GAP, color_system=None).print(shown)
    return [line for line in stream.getvalue().splitlines() if line.strip()]


def write_markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    table = table.shown(for_markdown)
    rule = line(["---"] * table.names + ["--:"] * (len(table.columns) - table.names))
    notes = ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join([line(table.columns), rule, *map(line, table.rows), *notes]) + "\n"


def write_latex(table: Table) -> str:
    r"""A tabular with the rules of the package booktabs. A minus of a figure is a minus sign, no hyphen."""

    def line(row: Sequence[str]) -> str:
        figures = [re.sub(r"(?<![\w.-])-(?=\d)", "$-$", cell) for cell in row[table.names :]]
        return " & ".join([*row[: table.names], *figures]) + r" \\"

    table = table.shown(for_latex)
    kinds = "l" * table.names + "r" * (len(table.columns) - table.names)
    lines = [r"% \usepackage{booktabs}", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule"]
    lines += [" & ".join(table.columns) + r" \\", r"\midrule", *map(line, table.rows)]
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def show_span(low: float | None, high: float | None, form: str, unit: float = 1) -> str:
    """From one figure to another; empty where one is None."""
    return "" if low is None or high is None else f"{unit * low:{form}} to {unit * high:{form}}"


def show_figure(value: float | None, form: str, unit: float = 1, low: float | None = None, high: float | None = None) -> str:
    """A figure, times `unit`, with its interval where it has one; empty for None."""
    span = show_span(low, high, form, unit)
    return "" if value is None else f"{unit * value:{form}}" + (span and f" ({span})")


def show_p(p: float | None) -> str:
    """At least three digits, as far as four places go."""
    return "" if p is None else "< 0.0001" if p < 1e-4 else f"{p:.3g}"


def name_roles(text: str, host: str) -> str:
    """A text on a base that writes by default, in the words of a comparison where the guide does."""
    swapped = {"base": "guide", "guide": "base"}
    return re.sub(r"\b(base|guide)\b", lambda at: swapped[at[0]], text) if host == "guide" else text


WRITERS = {"table": write_terminal, "md": write_markdown, "latex": write_latex}


def write_csv(columns: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> str:
    """Values as they are, texts so that no spreadsheet computes them; empty for None and for what a line lacks."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: for_csv(value) for name, value in line.items()} for line in lines)
    return stream.getvalue()


def write_json(value: Any) -> str:
    """In ASCII: lone surrogates and invisible letters stay escapes."""
    return json.dumps(value, indent=2) + "\n"


def check_writable(option: str, path: Path) -> None:
    """Raise ArgumentError, before hours of work, where no file can be written at `path`."""
    if path.is_dir():
        raise ArgumentError(f"--{option} '{path}' is a folder; expected a file")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ArgumentError(f"--{option} '{path}' cannot be written: '{folder}' is no writable folder; give another")


_MARKS = {  # by kind of file: what is written in each
    "a calibration": (b'"scores"', b'"decoding"'),
    "a baseline": (b'"written_by"', b'"tasks"'),
    "a report": (b"<title>Takeover report",),
    "a JUnit file of regress": (b'<testsuite name="lm-eval-takeover regress"',),
}


def check_replaceable(option: str, path: Path, kind: str) -> None:
    """Raise ArgumentError where something else lies at `path` than a file of this kind."""
    if not path.exists():
        return
    try:
        with open_input(path) as stream:
            content = stream.read(2**26)
    except OSError:
        content = b""
    if not all(mark in content for mark in _MARKS[kind]):
        raise ArgumentError(f"--{option} '{path}' is not {kind}; it was not changed; name a new file")


@contextlib.contextmanager
def writing(option: str, path: Path, kept: str = "") -> Iterator[None]:
    """Raise ArgumentError where what is written within cannot be. `kept` says what is not lost by that."""
    try:
        yield
    except OSError as error:
        problem = f"--{option} '{path}' cannot be written: {error.strerror or error}"
        raise ArgumentError(f"{problem}; give another place or make room{kept and f'; {kept}'}") from error


@contextlib.contextmanager
def holding(option: str, folder: Path, name: str, *, wait: bool = False) -> Iterator[Lock]:
    """Hold a lock in this folder, which is made. Raises ArgumentError where another process does, or the folder is moved."""
    with writing(option, folder):
        make_folder(folder)
        try:
            lock = Lock(folder / name, wait=wait)
        except Locked as holder:
            raise ArgumentError(f"--{option} '{folder}' is in use by {holder}; wait for it, or give another") from None
    moved = ArgumentError(f"--{option} '{folder}' was moved or removed; give the same command with its new place")
    with lock:
        try:
            yield lock
        except (Exception, SystemExit) as error:
            if lock.is_in_place():
                raise
            raise moved from error
        if not lock.is_in_place():
            raise moved


@contextlib.contextmanager
def replacing(folder: Path, index: str) -> Iterator[Path]:
    """A folder for new files, which come into `folder` when all are written. `index` is there only if all are of one call."""
    unfinished, count = folder / f".{index}.unfinished", len(written)
    shutil.rmtree(unfinished, ignore_errors=True)  # of a call that was killed
    unfinished.mkdir()
    try:
        yield unfinished
        names = sorted((path.name for path in unfinished.iterdir()), key=lambda name: name == index)
        (folder / index).unlink(missing_ok=True)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(folder / name, unfinished / name)
            (unfinished / name).replace(folder / name)
            written.append(folder / name)
        sync_folder(folder)
    finally:
        written[count:] = [path for path in written[count:] if path.parent == folder]
        shutil.rmtree(unfinished, ignore_errors=True)


def write_study(folder: Path, name: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], svg: str | None) -> None:
    """`NAME.csv`, `NAME.json` and, where there is a picture, `NAME.svg`."""
    write_text(folder / f"{name}.csv", write_csv(columns, rows))
    write_text(folder / f"{name}.json", write_json(rows))
    if svg is not None:
        write_text(folder / f"{name}.svg", svg)


def write_file(option: str, path: Path, text: str, kept: str = "") -> None:
    """Write a file that `--OPTION` names, whole or not at all. Raises ArgumentError."""
    with writing(option, path, kept):
        write_text(path, text)

"""What can be used of a damaged journal: every row that agrees with its digest."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm_eval_takeover.runs.journal import Sample
from lm_eval_takeover.runs.journal_file import (
    COLUMNS,
    ENVIRONMENT,
    TABLES,
    column_names,
    connect,
    is_trace_sound,
    row_digest,
    strip_checksum,
)


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The sound rows of a damaged journal: `(sample, the part that holds its trace)`, and rows of the other tables by name."""

    samples: list[tuple[Sample, str | None]]
    others: dict[str, list[list[Any]]]


@contextmanager
def _suppress_damage() -> Iterator[None]:
    """Go on behind what cannot be read. Raises what is no damage: a full memory, a locked file."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in ENVIRONMENT and code != sqlite3.SQLITE_IOERR:  # a truncated file gives IOERR, too
            raise


def salvage(path: Path) -> Salvaged:
    """Read each table from both ends, up to what is damaged. The file stays as it is."""
    found: dict[str, dict[bytes, list[Any]]] = {table: {} for table in TABLES}
    with _suppress_damage(), closing(connect(path, True)) as connection:
        connection.text_factory = lambda text: text.decode(errors="replace")
        for table in TABLES:
            count = len(COLUMNS[table])
            more = ", trace, part, place" if table == "samples" else ""
            query = f"SELECT {column_names(table)}, digest{more} FROM {table} NOT INDEXED ORDER BY rowid"
            for order in ("ASC", "DESC"):
                with _suppress_damage():
                    for row in connection.execute(f"{query} {order}"):
                        if row_digest(row[:count]) == row[count]:
                            found[table][row[count]] = list(row)
    samples = []
    for *row, _, trace, part, place in found.pop("samples").values():
        if is_trace_sound(row[0], trace, part, place):  # a sample without its trace is generated again
            samples.append((replace(Sample(*row), trace=strip_checksum(trace) if part is None else None), part))
    return Salvaged(samples, {table: [row[:-1] for row in rows.values()] for table, rows in found.items()})

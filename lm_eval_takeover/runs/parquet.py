"""Parquet files of a run_dir, which a stranger may have made: their size is bounded before they are read, their types are ours.

A file of 0.5 MB can hold 500 MB of rows. What is read at once, by what its metadata say, has at most `MOST_ROWS` rows and
`MOST_BYTES` bytes; texts stay in dictionaries until it is known how long they are together.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lm_eval_takeover.errors import RunDirError

MOST_ROWS = 2**23  # 16 times those of a file of ours
MOST_BYTES = 2**28
_NEVER_NULL = {"task", "doc_id", "sample", "position", "token_id", "chosen_from", "prompt_ids"}


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turns the errors of a file that cannot be read as `what` into RunDirErrors of one line."""
    try:
        yield
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError) as error:
        if isinstance(error, RunDirError):
            raise
        text = " ".join(str(error).split())[:300]
        raise RunDirError(f"'{path}' cannot be read as {what}: {text}") from error


def open_parquet(path: Path) -> pq.ParquetFile:
    """The file, of which only the metadata are read. To be used under `reading`."""
    if not path.is_file():
        raise FileNotFoundError(f"'{path}' is no file")
    names = pq.read_schema(path)
    return pq.ParquetFile(path, read_dictionary=[one.name for one in names if pa.types.is_string(one.type)])


def read_table(path: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Columns of a whole file, all of `schema` by default, in its types. To be used under `reading`."""
    with open_parquet(path) as file:
        return read_groups(file, range(file.num_row_groups), schema.names if columns is None else columns, schema)


def read_groups(file: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Columns of some row groups in the types of `schema`; those that it does not know are float32. Under `reading`."""
    names = list(dict.fromkeys(columns))
    if missing := [name for name in names if name not in file.schema_arrow.names]:
        raise ValueError(f"it has no column '{missing[0]}'")
    _check_size(file, groups, set(names))
    table = file.read_row_groups(list(groups), columns=names)
    fields = [schema.field(name) if name in schema.names else pa.field(name, pa.float32()) for name in names]
    return pa.table([_convert(table[one.name], one) for one in fields], schema=pa.schema(fields))


def _check_size(file: pq.ParquetFile, groups: Sequence[int], names: set[str]) -> None:
    rows = size = 0
    for group in map(file.metadata.row_group, groups):
        rows += group.num_rows
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.partition(".")[0] in names:
                # At least 4 bytes a value, however little its encoding takes.
                size += max(column.total_uncompressed_size, 4 * column.num_values)
    if rows > MOST_ROWS or size > MOST_BYTES:
        raise ValueError(
            f"it would take {size / 2**20:,.0f} MB for {rows:,} rows, and at most {MOST_BYTES // 2**20} MB and {MOST_ROWS:,} "
            f"rows are read at once"
        )


def _convert(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """A column in a field's type. Raises ValueError for values that it cannot have."""
    if pa.types.is_string(field.type) and pa.types.is_dictionary(column.type):
        _check_texts(column, field.name)
    if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
        column = column.cast(field.type.value_type).dictionary_encode()
    column = column.cast(field.type)
    values = pc.list_flatten(column) if pa.types.is_list(field.type) else column
    if field.name in _NEVER_NULL and (column.null_count or values.null_count):
        raise ValueError(f"column '{field.name}' has nulls")
    if pa.types.is_integer(values.type) and (pc.min(values).as_py() or 0) < 0:  # all are ids, places, ranks or counts
        raise ValueError(f"column '{field.name}' has {pc.min(values)}")
    return column


def _check_texts(column: pa.ChunkedArray, name: str) -> None:
    """Raises ValueError where the texts are too long once each row has its own."""
    size = sum(pc.sum(pc.binary_length(one.dictionary).take(one.indices)).as_py() or 0 for one in column.chunks)
    if size > MOST_BYTES:
        raise ValueError(
            f"the texts of column '{name}' have {size / 2**20:,.0f} MB, at most {MOST_BYTES // 2**20} MB are read"
        )

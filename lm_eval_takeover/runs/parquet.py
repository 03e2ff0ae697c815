"""Parquet files of a run_dir. Each is written whole, with a digest of its bytes that is checked before the file is read.

A file of 0.5 MB can hold 500 MB of rows. So at most `MOST_ROWS` rows and `MOST_BYTES` bytes are read at once.
"""

import hashlib
import io
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.storage.files import write_whole

Name = tuple[str, int, int]  # task, document, sample
NAME_COLUMNS = ("task", "doc_id", "sample")
NAME_FIELDS = (
    pa.field("task", pa.dictionary(pa.int32(), pa.string())),
    *(pa.field(name, pa.int32()) for name in ("doc_id", "sample", "position")),
)  # which token a row is
DIGEST = "takeover_digest"
_UNKNOWN = "0" * 32  # stands for the digest while that is computed
MOST_ROWS = 2**23  # 16 times those of a file of ours
MOST_BYTES = 2**28
_NEVER_NULL = {"task", "doc_id", "sample", "position", "token_id", "chosen_from", "prompt_ids"}


def name_tokens(names: Sequence[Name], lengths: Sequence[int]) -> dict[str, Any]:
    """The columns of `NAME_FIELDS` for samples with these numbers of tokens."""
    tasks = list(dict.fromkeys(task for task, _, _ in names))
    places = np.repeat([tasks.index(task) for task, _, _ in names], lengths).astype(np.int32)
    return {
        "task": pa.DictionaryArray.from_arrays(places, pa.array(tasks, pa.string())),
        "doc_id": np.repeat([doc_id for _, doc_id, _ in names], lengths),
        "sample": np.repeat([sample for _, _, sample in names], lengths),
        "position": np.concatenate([np.arange(length) for length in lengths]),
    }


def make_table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Columns, arrow's or numpy's, as a table of this schema. NaN is null."""
    arrays = [
        column
        if isinstance(column := columns[field.name], pa.Array)
        else pa.array(np.ascontiguousarray(column), field.type, from_pandas=True, safe=False)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_parquet(path: Path, table: pa.Table, metadata: Mapping[str, Any] | None = None, rows: int = 2**17) -> None:
    """Write a table and a digest of its bytes whole or not at all, in row groups of `rows`."""
    kinds = {field.name: field.type for field in table.schema}
    encodings = dict.fromkeys((name for name in kinds if pa.types.is_floating(kinds[name])), "BYTE_STREAM_SPLIT")
    encodings |= dict.fromkeys(kinds.keys() & {"doc_id", "sample", "position"}, "DELTA_BINARY_PACKED")
    buffer = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata({**(metadata or {}), DIGEST: _UNKNOWN}),
        buffer,
        compression="zstd",
        use_dictionary=[name for name, kind in kinds.items() if pa.types.is_dictionary(kind)],
        column_encoding=encodings,
        write_statistics=[name for name in NAME_COLUMNS if name in kinds],
        row_group_size=max(rows, 1),
    )
    data = bytearray(buffer.getvalue())
    seal(data)
    write_whole(path, lambda stream: stream.write(data))


def seal(data: bytearray) -> None:
    """Put the digest of a file's bytes into its place among them."""
    place, digest = _compute_digest(data)
    data[place] = digest


def _compute_digest(data: bytearray | mmap.mmap) -> tuple[slice, bytes]:
    """Where it stands, in the footer behind its name and two bytes of lengths, and what it is: of all other bytes."""
    if (place := data.rfind(DIGEST.encode())) < 0:
        raise ValueError("it names no digest: none of ours, or damaged")
    start = place + len(DIGEST) + 2
    stop, digest = start + len(_UNKNOWN), hashlib.blake2b(digest_size=16)
    with memoryview(data) as view, view[:start] as before, view[stop:] as behind:
        digest.update(before)
        digest.update(behind)
    return slice(start, stop), digest.hexdigest().encode()


@lru_cache(maxsize=1024)
def _check_digest_once(path: Path, *_: int) -> None:
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        place, digest = _compute_digest(data)
        if data[place] != digest:
            raise ValueError("its bytes do not fit its digest: they have changed since it was written")


def check_digest(path: Path) -> None:
    """Raises ValueError if the bytes of a file have changed, which is computed once for each of its states, and OSError."""
    if not path.is_file():
        raise FileNotFoundError(f"'{path}' is no file")
    state = path.stat()
    _check_digest_once(path, state.st_ino, state.st_size, state.st_mtime_ns)


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
    """The file, whose digest fits. To be used under `reading`."""
    check_digest(path)
    names = pq.read_schema(path)
    return pq.ParquetFile(path, read_dictionary=[field.name for field in names if pa.types.is_string(field.type)])


def read_table(path: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Columns of a file, all of `schema` by default, in its types; others are float32. To be used under `reading`."""
    names = list(dict.fromkeys(schema.names if columns is None else columns))
    with open_parquet(path) as file:
        if missing := [name for name in names if name not in file.schema_arrow.names]:
            raise ValueError(f"it has no column '{missing[0]}'")
        _check_size(file.metadata, set(names))
        table = file.read(names)
    fields = [schema.field(name) if name in schema.names else pa.field(name, pa.float32()) for name in names]
    return pa.table([_convert(table[field.name], field) for field in fields], schema=pa.schema(fields))


def _check_size(metadata: pq.FileMetaData, names: set[str]) -> None:
    rows, size = metadata.num_rows, 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.partition(".")[0] in names:
                # Values count at least 4 bytes each, however small the encoding is.
                size += max(column.total_uncompressed_size, 4 * column.num_values)
    if rows > MOST_ROWS or size > MOST_BYTES:
        raise ValueError(
            f"it would take {size / 2**20:,.0f} MB for {rows:,} rows, and at most {MOST_BYTES // 2**20} MB and {MOST_ROWS:,} "
            f"rows are read at once"
        )


def _convert(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """A column in a field's type. Raises ValueError for values that it cannot have."""
    if pa.types.is_string(field.type) and pa.types.is_dictionary(column.type):  # how long are they, each in its own row?
        size = sum(pc.sum(pc.binary_length(c.dictionary).take(c.indices)).as_py() or 0 for c in column.chunks)
        if size > MOST_BYTES:
            text = f"{size / 2**20:,.0f} MB of text; at most {MOST_BYTES // 2**20} are read"
            raise ValueError(f"column '{field.name}' has {text}")
    if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
        column = column.cast(field.type.value_type).dictionary_encode()
    column = column.cast(field.type)
    values = pc.list_flatten(column) if pa.types.is_list(field.type) else column
    if field.name in _NEVER_NULL and (column.null_count or values.null_count):
        raise ValueError(f"column '{field.name}' has nulls")
    if pa.types.is_integer(values.type) and (pc.min(values).as_py() or 0) < 0:  # all are ids, places, ranks or counts
        raise ValueError(f"column '{field.name}' has {pc.min(values)}")
    return column

"""Parquet files of a run_dir: their format, the prompts, and the traces. docs/runs.md describes the columns.

Each is written whole, with a digest of its bytes. The journals hold prompts and traces, and people read the files, which are
written from them; only scores are read back. A file of 0.5 MB can hold 500 MB of rows, so at most `MOST_ROWS` rows and
`MOST_BYTES` bytes are read at once. All but scores and integers keep 12 significant bits (0.02 %), which halves their size.
"""

import hashlib
import io
import mmap
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.method.request import OBSERVED, Generation, Request
from lm_eval_takeover.runs.journal import Damaged, Journal, Prompt, Sample, finding_damage, read_prompt
from lm_eval_takeover.runs.layout import PROMPTS, PROMPTS_LOCK, list_journals
from lm_eval_takeover.storage.files import Lock, write_whole
from lm_eval_takeover.tasks.context import WithheldPrompt

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

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
_NEVER_NULL = {"task", "doc_id", "sample", "position", "token_id", "chosen_from"}


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
    if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
        column = column.cast(field.type.value_type).dictionary_encode()
    column = column.cast(field.type)
    if field.name in _NEVER_NULL and column.null_count:
        raise ValueError(f"column '{field.name}' has nulls")
    if pa.types.is_integer(column.type) and (pc.min(column).as_py() or 0) < 0:  # all are ids, places, ranks or counts
        raise ValueError(f"column '{field.name}' has {pc.min(column)}")
    return column


# Prompts

PROMPT_SCHEMA = pa.schema({
    "task": pa.string(), "doc_id": pa.int32(), "prompt": pa.string(), "prompt_ids": pa.list_(pa.int32()),
    "problem": pa.string(), "answer": pa.string(),
})  # fmt: skip


def make_prompt(instance: "Instance", request: Request, doc_id: int) -> Prompt:
    """The row of a request's prompt."""
    doc, withheld = instance.doc if isinstance(instance.doc, Mapping) else {}, isinstance(instance.args[0], WithheldPrompt)
    return {
        "task": instance.task_name or "none",
        "doc_id": doc_id,
        "prompt": None if withheld else instance.args[0],
        "prompt_ids": list(request.prompt),
        "problem": None if withheld else _as_text(doc.get("problem")),
        "answer": _as_text(doc.get("answer")),
    }


def write_prompts(folder: Path) -> None:
    """The file of all prompts that the journals have, in the order of tasks and documents. Raises OSError."""
    lock, prompts = Lock(folder / PROMPTS_LOCK, wait=True), dict[str, Prompt]()
    try:
        for unfinished in folder.glob(f".{PROMPTS}.*"):  # of a run that was killed
            unfinished.unlink()
        for path in list_journals(folder):
            unreadable = suppress(Damaged, RunDirError, sqlite3.Error, OSError)  # its own rank repairs it
            with unreadable, closing(Journal(path, read_only=True, check=False)) as journal:
                prompts |= {digest: read_prompt(content) for digest, content in journal.prompts().items()}
        rows = sorted(prompts.values(), key=lambda row: (row["task"], row["doc_id"], row["prompt_ids"]))
        write_parquet(folder / PROMPTS, pa.Table.from_pylist(rows, schema=PROMPT_SCHEMA))
    finally:
        lock.release()


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)


# Traces

_INTEGERS = ("token_id", "donor_rank", "host_token_id")
_ROUNDED = ("base_entropy", "host_logprob", "donor_logprob")
TRACE_SCHEMA = pa.schema(
    [
        *NAME_FIELDS,
        pa.field("token_id", pa.int32()),
        pa.field("chosen_from", pa.dictionary(pa.int32(), pa.string())),
        *(pa.field(name, pa.float32()) for name in ("score", "base_entropy", "window_mean", "host_logprob", "donor_logprob")),
        pa.field("donor_rank", pa.int32()),
        pa.field("host_token_id", pa.int32()),
    ]
)
# The numbers of a sample in a journal, four bytes each. Behind them is a byte for each token: whether the donor wrote it.
_PACKED = {name: np.dtype("<i4") for name in _INTEGERS} | {name: np.dtype("<f4") for name in ("score", *_ROUNDED)}
_CODEC = pa.Codec("zstd", compression_level=1)


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What all tokens of one command share."""

    command: str
    writers: tuple[str, str]  # the roles that write without and with a takeover
    window: int | None  # of the gate; None where no gate decides


def pack_trace(generation: Generation, header: TraceHeader) -> bytes:
    """A sample's tokens as a journal holds them: the header as a line, then `_PACKED`, bytes of one place together."""
    rows = np.frombuffer(generation.observed or b"", np.float32).reshape(-1, len(OBSERVED))
    observed = dict(zip(OBSERVED, rows.T, strict=True))
    columns = {"token_id": generation.tokens, "score": generation.scores}
    columns |= {name: _round_bits(observed[name]) for name in _ROUNDED}
    columns |= {name: np.nan_to_num(observed[name.removesuffix("_id")], nan=-1) for name in ("donor_rank", "host_token_id")}
    packed = [np.asarray(columns[name], kind)[:, None].view(np.uint8).T.ravel() for name, kind in _PACKED.items()]
    packed.append(np.array(generation.taken_over, np.uint8))
    line = " ".join([header.command, *header.writers, str(header.window or 0)])
    compressed: bytes = _CODEC.compress(np.concatenate(packed), asbytes=True)
    return line.encode() + b"\n" + compressed


@finding_damage()
def read_header(trace: bytes) -> TraceHeader:
    """The header of a packed trace. Raises Damaged."""
    command, base, guide, window = trace.partition(b"\n")[0].decode().split(" ")
    if not {base, guide} <= {"base", "guide"} or not 0 <= int(window) < 2**16:
        raise ValueError("the header of a trace is none of ours")
    return TraceHeader(command, (base, guide), int(window) or None)


def unpack_trace(trace: bytes, tokens: int, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """These columns of a packed trace, `[tokens]` each, null as -1 or NaN, and `taken`: who wrote."""
    width = 4 * len(_PACKED) + 1
    if tokens * width > MOST_BYTES:
        raise ValueError(f"a trace of {tokens:,} tokens is too long to be read at once")
    try:
        data = np.frombuffer(_CODEC.decompress(trace.partition(b"\n")[2], tokens * width), np.uint8)
    except OSError as error:
        raise ValueError(f"a trace has another number of tokens than its sample: {error}") from None
    unpacked: dict[str, NDArray[Any]] = {"taken": data[tokens * (width - 1) :] > 0}
    for place, (name, kind) in enumerate(_PACKED.items()):
        if name in columns:
            split = data[4 * tokens * place :][: 4 * tokens].reshape(4, tokens)
            unpacked[name] = np.ascontiguousarray(split.T).view(kind)[:, 0]
    return unpacked


def window_means(scores: NDArray[np.float32], window: int | None) -> NDArray[np.float32]:
    """`m_t` of equation (5) at every position of one text: `[tokens]`, NaN at the first one, and everywhere without a gate."""
    if window is None:
        return np.full(len(scores), np.nan, np.float32)
    before = np.concatenate([np.zeros(window, np.float32), scores[:-1]])
    sums = np.lib.stride_tricks.sliding_window_view(before, window).sum(-1, dtype=np.float64)[: len(scores)]
    counts = np.minimum(np.arange(len(scores)), window)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums / counts, dtype=np.float32)


def _round_bits(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """To 12 significant bits, to nearest; infinities and NaN stay."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).copy()
    finite = np.isfinite(values)
    bits[finite] = (bits[finite] + np.uint32(0x7FF)) & np.uint32(0xFFFFF000)
    return bits.view(np.float32)


@finding_damage()
def tabulate(samples: Sequence[Sample], columns: Sequence[str] = TRACE_SCHEMA.names) -> pa.Table:
    """One row per token of these samples of one command, which hold their traces. Raises Damaged for a trace that is none."""
    header = read_header(samples[0].trace)
    needed = [*columns, "score"] if "window_mean" in columns else columns
    traces = [unpack_trace(sample.trace, sample.tokens, needed) for sample in samples]
    found: dict[str, Any] = {name: np.concatenate([trace[name] for trace in traces]) for name in traces[0]}
    for name in found.keys() & {*_INTEGERS}:
        if found[name].min(initial=0) < -(name != "token_id"):
            raise ValueError(f"the column '{name}' of a trace has {found[name].min()}")
        found[name] = pa.array(found[name], mask=found[name] < 0)
    found["chosen_from"] = pa.DictionaryArray.from_arrays(found["taken"].astype(np.int32), pa.array(header.writers))
    if "window_mean" in columns:
        means = [window_means(trace["score"], header.window) for trace in traces]
        found["window_mean"] = _round_bits(np.concatenate(means))
    if not {field.name for field in NAME_FIELDS}.isdisjoint(columns):
        names = [(sample.task, sample.doc_id, sample.sample) for sample in samples]
        found |= name_tokens(names, [sample.tokens for sample in samples])
    return make_table(found, pa.schema([TRACE_SCHEMA.field(name) for name in columns]))

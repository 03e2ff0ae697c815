"""Traces: one parquet row per emitted token, in parts of many samples.

    task, doc_id, sample, position, token_id, chosen_from,
    score, base_entropy, window_mean, host_logprob, donor_logprob, donor_rank, host_token_id

`position` counts from 0; `chosen_from` is base or guide; score, entropies and log-probabilities are in nats; `window_mean` is the
mean of the scores in the gate's window before the token; `donor_rank` is the rank of the emitted token under the host, 1 for its
likeliest one; `host_token_id` is what the host draws there with the same numbers, the token that a takeover replaced. Null where
a policy asks a model nothing. Scores are exact; entropies, means and log-probabilities keep 12
significant bits (0.02 %), which halves their size.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.observations import OBSERVED
from lm_eval_takeover.runs.journal import Sample
from lm_eval_takeover.runs.parquet import open_parquet, read_groups, read_table, reading
from lm_eval_takeover.storage.whole_files import write_whole

logger = logging.getLogger(__name__)

_FLOATS = ("score", "base_entropy", "window_mean", "host_logprob", "donor_logprob")
SCHEMA = pa.schema(
    [
        pa.field("task", pa.dictionary(pa.int32(), pa.string())),
        pa.field("doc_id", pa.int32()),
        pa.field("sample", pa.int32()),
        pa.field("position", pa.int32()),
        pa.field("token_id", pa.int32()),
        pa.field("chosen_from", pa.dictionary(pa.int32(), pa.string())),
        *(pa.field(name, pa.float32()) for name in _FLOATS),
        pa.field("donor_rank", pa.int32()),
        pa.field("host_token_id", pa.int32()),
    ]
)
_OBSERVED_BEFORE = OBSERVED[:4]  # by traces whose header does not say what they hold


def _packed(observed: Sequence[str]) -> np.dtype[np.void]:
    """A token in a journal."""
    return np.dtype([("token", "<i4"), ("taken", "u1"), ("score", "<f4"), *((name, "<f4") for name in observed)])


_PACKED = _packed(OBSERVED)


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What all tokens of one command share."""

    command: str
    writers: tuple[str, str]  # the role that writes where there is no takeover, and where there is one
    window: int | None  # of the gate; None where no gate decides


def pack_trace(generation: Generation, header: TraceHeader) -> bytes:
    """A sample's tokens as a journal holds them until they are in a part: the header as a line of JSON, then 29 bytes a token."""
    rows = np.empty(len(generation.tokens), _PACKED)
    rows["token"], rows["taken"], rows["score"] = generation.tokens, generation.taken_over, generation.scores
    observed = np.frombuffer(generation.observed or b"", np.float32).reshape(-1, len(OBSERVED))
    for column, name in enumerate(OBSERVED):
        rows[name] = observed[:, column]
    return json.dumps([header.command, header.writers, header.window, OBSERVED]).encode() + b"\n" + rows.tobytes()


def unpack_trace(trace: bytes) -> tuple[TraceHeader, NDArray[np.void]]:
    """The reverse of `pack_trace`; rows `[tokens]` of `_PACKED`, NaN where an older version observed less."""
    line, _, packed = trace.partition(b"\n")
    command, writers, window, *observed = json.loads(line)
    found = np.frombuffer(packed, _packed(observed[0] if observed else _OBSERVED_BEFORE))
    if found.dtype == _PACKED:
        rows = found
    else:
        rows = np.empty(len(found), _PACKED)
        for name in _PACKED.names or ():
            rows[name] = found[name] if name in (found.dtype.names or ()) else np.nan
    return TraceHeader(command, tuple(writers), window), rows


def window_means(scores: NDArray[np.float32], window: int) -> NDArray[np.float32]:
    """`m_t` of equation (5) at every position of one text: `[tokens]`, NaN at the first one."""
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


def write_part(path: Path, samples: Sequence[Sample], facts: Mapping[str, Any]) -> None:
    """The traces of these samples of one command, whole or not at all; `facts` go into the file's metadata as `takeover`."""
    _write(path, make_part(samples).replace_schema_metadata({"takeover": json.dumps(facts)}))


def read_sample_names(part: Path) -> set[tuple[str, int, int]] | None:
    """`(task, doc_id, sample)` of all whose tokens a part holds; None where it cannot be read."""
    try:
        with reading(part, "a trace"):
            return set(_list_names(read_table(part, SCHEMA, ["task", "doc_id", "sample"])))
    except RunDirError:
        return None


def _list_names(table: pa.Table) -> list[tuple[str, int, int]]:
    """`(task, doc_id, sample)` of every row."""
    return list(zip(*(table[name].to_pylist() for name in ("task", "doc_id", "sample")), strict=True))


def extract_part(old: Path, samples: Sequence[Sample], new: Path) -> str | None:
    """The name of a part with the tokens of these samples alone: `old` if it holds no others, else `new`, which is written.

    None where the old one cannot be read.
    """
    wanted = {(sample.task, sample.doc_id, sample.sample) for sample in samples}
    try:
        with reading(old, "a trace"), open_parquet(old) as file:
            known = [name for name in SCHEMA.names if name in file.schema_arrow.names]  # an older version has fewer
            table = read_groups(file, range(file.num_row_groups), known, SCHEMA)
            table = table.replace_schema_metadata(file.schema_arrow.metadata)
        names = _list_names(table)
    except RunDirError as error:
        logger.warning("%s; its samples have no trace", error)
        return None
    if set(names) <= wanted:
        return old.name
    _write(new, table.filter(pa.array([name in wanted for name in names], pa.bool_())))
    return new.name


def _write(path: Path, table: pa.Table) -> None:
    write_whole(
        path,
        lambda stream: pq.write_table(
            table,
            stream,
            compression="zstd",
            use_dictionary=["task", "chosen_from"],
            column_encoding={
                **dict.fromkeys(_FLOATS, "BYTE_STREAM_SPLIT"),
                **dict.fromkeys(("doc_id", "sample", "position"), "DELTA_BINARY_PACKED"),
            },
            write_statistics=["task", "doc_id", "sample"],
            row_group_size=2**17,
        ),
    )


def _as_integers(values: NDArray[np.float32]) -> pa.Array:
    """Whole numbers, null where there is NaN."""
    return pa.array(np.nan_to_num(values).astype(np.int32), mask=np.isnan(values))


def make_part(samples: Sequence[Sample]) -> pa.Table:
    """One row per token of these samples of one command, which hold their traces."""
    traces = [unpack_trace(sample.trace or b"") for sample in samples]
    header = traces[0][0]
    rows = np.concatenate([tokens for _, tokens in traces])
    lengths = [len(tokens) for _, tokens in traces]
    if header.window is None:
        means = np.full(len(rows), np.nan, np.float32)
    else:
        means = np.concatenate([window_means(tokens["score"], header.window) for _, tokens in traces])
    tasks = list(dict.fromkeys(sample.task for sample in samples))
    of_task = np.repeat([tasks.index(sample.task) for sample in samples], lengths).astype(np.int32)
    columns = {
        "task": pa.DictionaryArray.from_arrays(of_task, pa.array(tasks, pa.string())),
        "doc_id": np.repeat([sample.doc_id for sample in samples], lengths),
        "sample": np.repeat([sample.sample for sample in samples], lengths),
        "position": np.concatenate([np.arange(length) for length in lengths]),
        "token_id": rows["token"],
        "chosen_from": pa.DictionaryArray.from_arrays(rows["taken"].astype(np.int32), pa.array(header.writers)),
        "score": rows["score"],
        "base_entropy": _round_bits(rows["base_entropy"]),
        "window_mean": _round_bits(means),
        "host_logprob": _round_bits(rows["host_logprob"]),
        "donor_logprob": _round_bits(rows["donor_logprob"]),
        "donor_rank": _as_integers(rows["donor_rank"]),
        "host_token_id": _as_integers(rows["host_token"]),
    }
    arrays = [
        column
        if isinstance(column, pa.Array)
        else pa.array(np.ascontiguousarray(column), field.type, from_pandas=True, safe=False)
        for field, column in ((field, columns[field.name]) for field in SCHEMA)
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)

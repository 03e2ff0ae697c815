"""Traces: one parquet row per emitted token, in parts of many samples.

    task, doc_id, sample, position, token_id, chosen_from,
    score, base_entropy, window_mean, host_logprob, donor_logprob, donor_rank, host_token_id

`position` counts from 0; `chosen_from` is base or guide. Score, entropies and log-probabilities are in nats. `window_mean` is
the mean score in the gate's window before the token. `donor_rank` is the rank of the emitted token under the host, 1 for the
likeliest. `host_token_id` is what the host draws there with the same numbers: the token that a takeover replaced. Null where a
policy does not ask a model. All but scores and integers keep 12 significant bits (0.02 %), which halves their size.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.method.generation import OBSERVED, Generation
from lm_eval_takeover.runs import parquet
from lm_eval_takeover.runs.journal import Sample
from lm_eval_takeover.runs.parquet import Name

_FLOATS = ("score", "base_entropy", "window_mean", "host_logprob", "donor_logprob")
SCHEMA = pa.schema(
    [
        *parquet.NAME_FIELDS,
        pa.field("token_id", pa.int32()),
        pa.field("chosen_from", pa.dictionary(pa.int32(), pa.string())),
        *(pa.field(name, pa.float32()) for name in _FLOATS),
        pa.field("donor_rank", pa.int32()),
        pa.field("host_token_id", pa.int32()),
    ]
)
# A token in a journal.
_PACKED = np.dtype([("token", "<i4"), ("taken", "u1"), ("score", "<f4"), *((name, "<f4") for name in OBSERVED)])


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What all tokens of one command share."""

    command: str
    writers: tuple[str, str]  # the roles that write without and with a takeover
    window: int | None  # of the gate; None where no gate decides


def pack_trace(generation: Generation, header: TraceHeader) -> bytes:
    """A sample's tokens as a journal holds them until they are in a part: the header as a line of JSON, then 29 bytes a token."""
    rows = np.empty(len(generation.tokens), _PACKED)
    rows["token"], rows["taken"], rows["score"] = generation.tokens, generation.taken_over, generation.scores
    observed = np.frombuffer(generation.observed or b"", np.float32).reshape(-1, len(OBSERVED))
    for column, name in enumerate(OBSERVED):
        rows[name] = observed[:, column]
    return json.dumps([header.command, header.writers, header.window]).encode() + b"\n" + rows.tobytes()


def unpack_trace(trace: bytes) -> tuple[TraceHeader, NDArray[np.void]]:
    """The reverse of `pack_trace`; rows `[tokens]` of `_PACKED`."""
    line, _, packed = trace.partition(b"\n")
    command, writers, window = json.loads(line)
    return TraceHeader(command, tuple(writers), window), np.frombuffer(packed, _PACKED)


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
    parquet.write_parquet(path, make_part(samples), {"takeover": json.dumps(facts)})


def read_sample_names(part: Path) -> set[Name] | None:
    """The samples whose tokens a part holds; None where it cannot be read."""
    try:
        with parquet.reading(part, "a trace"):
            table = parquet.read_table(part, SCHEMA, parquet.NAME_COLUMNS)
            return set(zip(*(table[name].to_pylist() for name in parquet.NAME_COLUMNS), strict=True))
    except RunDirError:
        return None


def make_part(samples: Sequence[Sample]) -> pa.Table:
    """One row per token of these samples of one command, which hold their traces."""
    traces = [unpack_trace(sample.trace or b"") for sample in samples]
    header = traces[0][0]
    rows = np.concatenate([tokens for _, tokens in traces])
    if header.window is None:
        means = np.full(len(rows), np.nan, np.float32)
    else:
        means = np.concatenate([window_means(tokens["score"], header.window) for _, tokens in traces])
    names = [(sample.task, sample.doc_id, sample.sample) for sample in samples]
    columns = {
        **parquet.name_tokens(names, [len(tokens) for _, tokens in traces]),
        "token_id": rows["token"],
        "chosen_from": pa.DictionaryArray.from_arrays(rows["taken"].astype(np.int32), pa.array(header.writers)),
        "score": rows["score"],
        **{name: _round_bits(rows[name]) for name in ("base_entropy", "host_logprob", "donor_logprob")},
        "window_mean": _round_bits(means),
        "donor_rank": _as_integers(rows["donor_rank"]),
        "host_token_id": _as_integers(rows["host_token"]),
    }
    return parquet.make_table(columns, SCHEMA)


def _as_integers(values: NDArray[np.float32]) -> pa.Array:
    """Whole numbers, null where there is NaN."""
    return pa.array(np.nan_to_num(values).astype(np.int32), mask=np.isnan(values))

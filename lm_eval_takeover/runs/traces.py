"""Traces: one row per emitted token. The journal holds them; parquet files under traces/ are written from it when a run ends.

    task, doc_id, sample, position, token_id, chosen_from,
    score, base_entropy, window_mean, host_logprob, donor_logprob, donor_rank, host_token_id

`position` counts from 0; `chosen_from` is base or guide. Score, entropies and log-probabilities are in nats. `window_mean` is
the mean score in the gate's window before the token. `donor_rank` is the rank of the emitted token under the host, 1 for the
likeliest. `host_token_id` is what the host draws there with the same numbers: the token that a takeover replaced. Null where a
policy does not ask a model. All but scores and integers keep 12 significant bits (0.02 %), which halves their size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lm_eval_takeover.method.generation import OBSERVED, Generation
from lm_eval_takeover.runs import parquet
from lm_eval_takeover.runs.journal import Sample, finding_damage

_INTEGERS = ("token_id", "donor_rank", "host_token_id")
_ROUNDED = ("base_entropy", "host_logprob", "donor_logprob")
SCHEMA = pa.schema(
    [
        *parquet.NAME_FIELDS,
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
    if tokens * width > parquet.MOST_BYTES:
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
def tabulate(samples: Sequence[Sample], columns: Sequence[str] = SCHEMA.names) -> pa.Table:
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
    if not {field.name for field in parquet.NAME_FIELDS}.isdisjoint(columns):
        names = [(sample.task, sample.doc_id, sample.sample) for sample in samples]
        found |= parquet.name_tokens(names, [sample.tokens for sample in samples])
    return parquet.make_table(found, pa.schema([SCHEMA.field(name) for name in columns]))

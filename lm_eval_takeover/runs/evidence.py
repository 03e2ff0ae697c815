"""What a journal keeps of the tokens of a text, packed: its trace, and its scores under both models.

Each content is a line that says what follows, then the columns, compressed: the bytes of one place in a number stand together.
Scores and integers are exact. Other floats of a trace keep 12 significant bits (0.02 %), which halves its size.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lm_eval_takeover.method.request import COMPARED, COUNTED, OBSERVED, Generation
from lm_eval_takeover.runs.journal import finding_damage
from lm_eval_takeover.storage.schema import Between, check

Columns = dict[str, NDArray[Any]]  # `[tokens]` each
Kinds = Mapping[str, np.dtype[Any]]  # of columns, in their order

MOST_BYTES = 2**28  # that a content unpacks to: a few KB can state any size
_MOST_OF_LINE = 2**16  # that says what follows
_NULLABLE = ("donor_rank", "host_token_id")  # -1 where the host was not asked
_INTEGER, _FLOAT = np.dtype("<i4"), np.dtype("<f4")
_CODEC = pa.Codec("zstd", compression_level=1)


def _pack(header: Any, kinds: Kinds, columns: Mapping[str, Any]) -> bytes:
    packed = [np.asarray(columns[name], kind)[:, None].view(np.uint8).T.ravel() for name, kind in kinds.items()]
    compressed: bytes = _CODEC.compress(np.concatenate(packed), asbytes=True)
    return json.dumps(asdict(header)).encode() + b"\n" + compressed


def _unpack(content: bytes, kinds: Kinds, tokens: int, wanted: Collection[str]) -> Columns:
    """The wanted columns. Raises ValueError where they are not those of so many tokens, or hold what they cannot."""
    size = tokens * sum(kind.itemsize for kind in kinds.values())
    if size > MOST_BYTES:
        raise ValueError(f"the evidence of {tokens:,} tokens is too long to be read at once")
    try:
        data = np.frombuffer(_CODEC.decompress(memoryview(content)[content.index(b"\n") + 1 :], size), np.uint8)
    except OSError as error:
        raise ValueError(f"a text has another number of tokens than its sample: {error}") from None
    unpacked, start = Columns(), 0
    for name, kind in kinds.items():
        stop = start + tokens * kind.itemsize
        if name in wanted:
            split = data[start:stop].reshape(kind.itemsize, tokens)
            unpacked[name] = values = np.ascontiguousarray(split.T).view(kind)[:, 0]
            if kind == _INTEGER and values.min(initial=0) < -(name in _NULLABLE):
                raise ValueError(f"the column '{name}' of a text has {values.min()}")
        start = stop
    return unpacked


def _read_header(content: bytes, kind: Any) -> Any:
    return _read_line(content[: content.index(b"\n", 0, _MOST_OF_LINE)], kind)


@lru_cache(maxsize=64)
def _read_line(line: bytes, kind: Any) -> Any:
    return check(json.loads(line), kind, "header")


# Traces

_ROUNDED = ("base_entropy", "host_logprob", "donor_logprob")
_TRACED: Kinds = {
    **dict.fromkeys(("token_id", *_NULLABLE), _INTEGER),
    **dict.fromkeys(("score", *_ROUNDED), _FLOAT),
    "taken": np.dtype(np.uint8),  # whether the donor wrote it
}


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What all tokens of one command share."""

    command: str
    writers: tuple[str, str]  # the roles that write without and with a takeover
    window: Annotated[int, Between(1, 2**16)] | None  # of the gate; None where no gate decides


def pack_trace(generation: Generation, header: TraceHeader) -> bytes:
    """A sample's tokens as a journal holds them."""
    rows = np.frombuffer(generation.observed or b"", np.float32).reshape(-1, len(OBSERVED))
    observed = dict(zip(OBSERVED, rows.T, strict=True))
    columns: dict[str, Any] = {"token_id": generation.tokens, "score": generation.scores, "taken": generation.taken_over}
    columns |= {name: _round_bits(observed[name]) for name in _ROUNDED}
    columns |= {name: np.nan_to_num(observed[name.removesuffix("_id")], nan=-1) for name in _NULLABLE}
    return _pack(header, _TRACED, columns)


@finding_damage()
def read_trace_header(trace: bytes) -> TraceHeader:
    """The header of a packed trace. Raises Damaged."""
    header: TraceHeader = _read_header(trace, TraceHeader)
    if not {*header.writers} <= {"base", "guide"}:
        raise ValueError("the header of a trace is none of ours")
    return header


@finding_damage()
def unpack_trace(trace: bytes, tokens: int, wanted: Collection[str]) -> Columns:
    """These columns of a packed trace, as docs/runs.md describes them. Null is -1 or NaN. Raises Damaged."""
    header, found = read_trace_header(trace), _unpack(trace, _TRACED, tokens, {*wanted, "score", "taken"})
    if "chosen_from" in wanted:
        found["chosen_from"] = np.where(found["taken"] == 0, *np.array(header.writers, object))
    if "window_mean" in wanted:
        found["window_mean"] = _round_bits(window_means(found["score"], header.window))
    return {name: values for name, values in found.items() if name in wanted}


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


# Scores

ENTROPY = "entropy"


@dataclass(frozen=True, slots=True)
class ScoresHeader:
    """What the scores of a run share: the models, as a person reads them, and the scores with the digests of plug-ins."""

    models: str
    scores: dict[str, str | None]

    def describe(self) -> str:
        return ", ".join([self.models, *self.scores])


def column_of(score: str) -> str:
    return "base_entropy" if score == ENTROPY else score


def list_score_columns(scores: Iterable[str]) -> Kinds:
    floats = dict.fromkeys([*map(column_of, scores), *(name for name in COMPARED if name not in COUNTED)], _FLOAT)
    return {"token_id": _INTEGER} | floats | dict.fromkeys(("token_id", *COUNTED), _INTEGER)


def pack_scores(header: ScoresHeader, columns: Mapping[str, Any]) -> bytes:
    """The scores of a text as a journal holds them: columns `[tokens]` by name."""
    return _pack(header, list_score_columns(header.scores), columns)


@finding_damage()
def unpack_scores(content: bytes, tokens: int, wanted: Collection[str]) -> tuple[ScoresHeader, Columns]:
    """The header of packed scores, and those of these columns that they have. Raises Damaged."""
    if not tokens:
        raise ValueError("a text without tokens has scores")
    header = _read_header(content, ScoresHeader)
    return header, _unpack(content, list_score_columns(header.scores), tokens, wanted)

"""What a pass reads and writes: KV caches, padded rows, and copies of small tensors between host and device without waiting.

In a ragged cache rows have their own lengths. A pass writes at each row's end; a roll-back subtracts from its length. Buffers are
`[slots, columns, heads, head_dim]`, allocated ahead; in memory the columns of a head follow each other, as attention reads them.
Row `r` owns columns `0 .. lengths[r] - 1`. Later columns may be overwritten, and no query of that row attends to them. Blocks
need this, since each row accepts its own number of drafted tokens. Lockstep and teacher forcing pad on the left.
"""

import copy
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import psutil
import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionCacheLayerMixin

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.kernels import operations as kernels
from lm_eval_takeover.pair.member import Member

COLUMN_STEP = 128  # columns are allocated in multiples of it
LONGEST = 64  # tokens of a draft, at most
_MOST_LOGITS = 2**26  # rows x tokens x vocabulary of a draft that are always held: 256 MiB
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # new tokens of a pass that is padded
_ANY = 2**31  # columns that a row may need, if unknown


def round_up_columns(columns: int) -> int:
    return -(-columns // COLUMN_STEP) * COLUMN_STEP


@cache
def longest_draft(rows: int, vocab: int, device: torch.device) -> int:
    """The most drafted tokens whose float32 logits take 1/64 of the device's memory."""
    on_gpu = device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if on_gpu else psutil.virtual_memory().total
    return max(1, min(LONGEST, max(_MOST_LOGITS, memory // 256) // (rows * vocab)))


def round_up(new: int) -> int:
    """The padded length of a pass over these new tokens, so that few shapes occur."""
    return next((size for size in _SIZES if size >= new), new)


def are_contiguous(slots: Sequence[int]) -> bool:
    """Whether these are slots 0, 1, 2 …, so that a slice selects them."""
    return list(slots) == list(range(len(slots)))


class PassPlan:
    """Where a pass reads and writes: `rows` rows, each `new` tokens from its own length on, attending to the first `columns`."""

    aligned_start: int | None  # the rows' first new column if they have one length, else None

    def __init__(self, lengths: Sequence[int], new: int, slots: Sequence[int], device: torch.device) -> None:
        self.rows, self.new, self.device = len(lengths), new, device
        self._slots, self._lengths = slots, lengths
        self._elsewhere: dict[torch.device, PassPlan] = {}
        self.is_contiguous = are_contiguous(slots)
        longest = max(lengths)
        self.aligned_start = longest if self.is_contiguous and longest == min(lengths) else None
        self.columns = longest + new

    def on(self, device: torch.device) -> "PassPlan":
        """The same plan for layers on another device, made once."""
        if device == self.device or (device.type == self.device.type and self.device.index is None):
            return self
        if device not in self._elsewhere:
            self._elsewhere[device] = PassPlan(self._lengths, self.new, self._slots, device)
        return self._elsewhere[device]

    @cached_property
    def positions(self) -> Tensor:
        """The columns of the new tokens, which are their positions in the text: `[rows, new]`."""
        return upload(torch.tensor(self._lengths)[:, None], self.device) + torch.arange(self.new, device=self.device)

    @cached_property
    def slots(self) -> Tensor:
        """The slot of each row: `[rows]`."""
        if self.is_contiguous:
            return torch.arange(self.rows, device=self.device)
        return torch.tensor(self._slots, device=self.device)

    @cached_property
    def slot_index(self) -> Tensor:
        """The slot of each row, to index beside `positions`: `[rows, 1]`."""
        return self.slots[:, None]


class RaggedLayer(DynamicLayer):  # type: ignore[misc]
    """The keys and values of one attention layer. Sliding windows are in the mask."""

    def __init__(self, cache: "RaggedCache") -> None:
        super().__init__()
        # Weak, so that buffers are freed with their cache, not by the garbage collector later.
        self._cache: Any = weakref.proxy(cache)
        self.buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """As `write` in the layout of transformers: `[rows, heads, new, head_dim]`."""
        plan = self._cache.plan.on(key_states.device)
        return self.write(key_states.transpose(1, 2), value_states.transpose(1, 2), plan)

    def write(self, keys: Tensor, values: Tensor, plan: PassPlan) -> tuple[Tensor, Tensor]:
        """Write keys and values `[rows, new, heads, head_dim]`. Returns what `read` does."""
        for buffer, states in zip(self.reserve(plan.columns, (keys, values)), (keys, values), strict=True):
            if plan.aligned_start is None:
                buffer[plan.slot_index, plan.positions] = states
            else:
                buffer[: plan.rows, plan.aligned_start : plan.columns] = states
        return self.read(plan)

    def reserve(self, columns: int, like: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The buffers, with so many columns or more, for keys and values like these."""
        if self.buffers is None or self.buffers[0].shape[1] < columns:
            self.grow(columns, like)
        assert self.buffers is not None
        return self.buffers

    def read(self, plan: PassPlan) -> tuple[Tensor, Tensor]:
        """The keys and values that the rows of a pass attend to: `[rows, heads, columns, head_dim]` each."""
        assert self.buffers is not None
        keys, values = (buffer.transpose(1, 2) for buffer in self.buffers)
        if not plan.is_contiguous:
            return keys[plan.slots, :, : plan.columns], values[plan.slots, :, : plan.columns]
        return keys[: plan.rows, :, : plan.columns], values[: plan.rows, :, : plan.columns]

    def grow(self, columns: int, like: Sequence[Tensor]) -> None:
        """Allocate this many columns or more; `like` are keys and values `[..., heads, head_dim]` of their kind."""
        allocated = 0 if self.buffers is None else self.buffers[0].shape[1]
        columns = round_up_columns(max(columns, min(2 * allocated, self._cache.most_columns)))  # few copies are made
        grown = []
        for kind, states in enumerate(like):
            # Zeros, since what a mask hides is still multiplied, and NaN times 0 is NaN.
            heads, size = states.shape[2:]
            buffer = states.new_zeros(self._cache.slots, heads, columns, size).transpose(1, 2)
            if self.buffers is not None:
                buffer[:, : self.buffers[kind].shape[1]] = self.buffers[kind]
            grown.append(buffer)
        self.buffers = (grown[0], grown[1])

    def get_seq_length(self, *args: Any) -> int:
        return 0 if self.buffers is None else self._cache.plan.columns


class RaggedCache(Cache):  # type: ignore[misc]
    """The cache of one model for `slots` rows of at most `most_columns`. plan: of the current or the last pass."""

    plan: PassPlan

    def __init__(self, layers: int, slots: int, most_columns: int = _ANY) -> None:
        self.slots, self.most_columns = slots, most_columns
        super().__init__(layers=[RaggedLayer(self) for _ in range(layers)])

    @property
    def columns(self) -> int:
        buffers = self.layers[0].buffers
        return 0 if buffers is None else int(buffers[0].shape[1])

    def reserve(self, columns: int, like: "RaggedCache | None" = None) -> None:
        """Allocate this many columns in every layer, like those of a used cache (by default, this one)."""
        if self.columns < columns:
            for layer, other in zip(self.layers, (like or self).layers, strict=True):
                assert other.buffers is not None
                layer.grow(columns, other.buffers)

    def copy_row(self, source: "RaggedCache", row: int, slot: int, length: int) -> None:
        """Copy the first `length` columns of a row of `source` into `slot`."""
        if not length:
            return
        self.reserve(length, source)
        for layer, other in zip(self.layers, source.layers, strict=True):
            for to, from_ in zip(layer.buffers, other.buffers, strict=True):
                to[slot, :length] = from_[row, :length]


def list_cache_layers(config: Any) -> list[Any]:
    """The layers of transformers' cache that hold anything. Empty if there is no cache; `read_layer_windows` says why."""
    try:
        return _make_layers(config)
    except Exception:
        return []


def _make_layers(config: Any) -> list[Any]:
    """Without those that read the keys of others, the last ones, which transformers 5.23 and later list, too."""
    return [layer for layer in DynamicCache(config=config).layers if type(layer).__name__ != "DummyLayer"]


def list_layer_kinds(config: Any) -> set[type]:
    return {type(layer) for layer in list_cache_layers(config)}


def keeps_state(config: Any) -> bool:
    """Whether layers of transformers' own kinds are recurrent or convolutions, whose states a pass overwrites."""
    kinds = list_layer_kinds(config)
    own = all(kind.__module__ == DynamicCache.__module__ for kind in kinds)
    return own and any(issubclass(kind, LinearAttentionCacheLayerMixin) for kind in kinds)


def read_layer_windows(config: Any, name: str) -> list[int | None]:
    """The attention window of each layer in tokens, None for full attention.

    Raises ArgumentError if rows cannot have their own lengths: layers keep a state, or attention takes positions from the batch.
    """
    text = config.get_text_config()
    try:
        layers = _make_layers(config)
    except Exception as error:  # a configuration that transformers' caches do not know
        raise ArgumentError(f"{name}: transformers has no cache for it ({error}); use block_size=1") from error
    kinds = {type(layer) for layer in layers} - {DynamicLayer, DynamicSlidingWindowLayer}
    reason = None
    if kinds:
        reason = f"its layers of kind {min(kind.__name__ for kind in kinds)} keep a state that cannot be rolled back"
    elif "chunked_attention" in (getattr(text, "layer_types", None) or ()):
        reason = "its attention is by chunks"
    elif getattr(text, "alibi", False) or text.model_type in ("bloom", "gpt_neo"):
        reason = "its attention takes positions from the columns of the batch"
    if reason:
        raise ArgumentError(f"{name}: {reason}; use block_size=1")
    windows = [None if type(layer) is DynamicLayer else int(layer.sliding_window) for layer in layers]
    return windows or [None] * int(text.num_hidden_layers)


def select_rows(cache: DynamicCache, rows: Tensor) -> DynamicCache:
    """A new cache with these rows, in this order; rows may repeat. The original does not change."""

    def select(states: Tensor) -> Tensor:
        return states.index_select(0, rows.to(states.device)) if states.ndim > 1 else states

    return _copy_with(cache, select, shares_attributes=False)  # `reorder_cache` leaves out states of DeepSeek V4


def copy_cache(cache: DynamicCache) -> DynamicCache:
    """An independent copy. States are copied, since passes write them in place. Keys and values are shared: they only grow."""
    return _copy_with(cache, Tensor.clone, shares_attributes=True)


def _copy_with(cache: DynamicCache, change: Callable[[Tensor], Tensor], *, shares_attributes: bool) -> DynamicCache:
    """A copy with changed tensors in the dictionaries of its layers, where linear attention keeps its states, and beside them."""

    def convert(value: Any, shared: bool) -> Any:
        if isinstance(value, dict):
            return {name: convert(part, False) for name, part in value.items()}
        return change(value) if isinstance(value, Tensor) and not shared else value

    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in copied.layers:
        vars(layer).update({name: convert(value, shares_attributes) for name, value in vars(layer).items()})
    return copied


@dataclass(slots=True)
class Sequences:
    """Rows that one model has read: its cache, left padded, and the logits of the next token.

    mask `[rows, length]`, logits `[rows, vocab]`. Without a cache, ids `[rows, length]` are read again at every token; with one,
    where the rotation changes.
    """

    member: Member
    vocab: int
    cache: DynamicCache | None
    ids: Tensor | None
    mask: Tensor
    logits: Tensor

    @classmethod
    def prefill(cls, member: Member, vocab: int, prompts: Sequence[Sequence[int]], *, cached: bool = True) -> "Sequences":
        ids, mask = pad_left(prompts, member.device)
        cache = DynamicCache(config=member.model.config) if cached else None
        again = None if cached and member.rotation_length is None else ids[:, :0]
        sequences = cls(member, vocab, cache, again, mask[:, :0], torch.empty(0))
        sequences.read(ids, mask)
        return sequences

    def append(self, tokens: Tensor) -> None:
        """Read one more token per row: tokens `[rows]`."""
        ids = tokens.to(self.member.device)[:, None]
        self.read(ids, torch.ones_like(ids))

    def read(self, ids: Tensor, mask: Tensor) -> None:
        """Read `ids` `[rows, new]` next. mask `[rows, new]`: 0 on padding, which stands before all text."""
        before, self.mask = self.mask.shape[1], torch.cat([self.mask, mask], dim=1)
        if self.ids is not None:
            self.ids = torch.cat([self.ids, ids], dim=1)
            if self.cache is None:
                ids = self.ids
            elif self.member.rotates_again(before, self.mask.shape[1]):
                self.cache, ids = DynamicCache(config=self.member.model.config), self.ids
        self.logits = self.member.compute_logits(ids, self.mask, cache=self.cache)[:, -1, : self.vocab]

    def select(self, rows: Sequence[int]) -> "Sequences":
        """These rows, in this order; rows may repeat. The original does not change."""
        index = torch.tensor(rows, device=self.member.device)
        return replace(
            self,
            cache=None if self.cache is None else select_rows(self.cache, index),
            ids=None if self.ids is None else self.ids[index],
            mask=self.mask[index],
            logits=self.logits[index],
        )


def choose_device(device: torch.device) -> torch.device:
    """Where logits of a model on this device are used: there if kernels run, else on the CPU (mps has no float64)."""
    return device if kernels.run_on(device) else torch.device("cpu")


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy values of the host to a device. A GPU copies from pinned memory, and the host does not wait."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


class HostCopy:
    """One copy of several small tensors to the host, which neither side waits for."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors: list[Tensor] = list(tensors)
        self._arrived: Any = None
        device = tensors[0].device
        if device.type == "cuda":
            packed = torch.cat([tensor.double().flatten() for tensor in tensors])  # exact up to 2^53
            host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True).copy_(packed, non_blocking=True)
            parts = zip(tensors, torch.split(host, [tensor.numel() for tensor in tensors]), strict=True)
            self._tensors = [part.view(tensor.shape) for tensor, part in parts]
            self._dtypes = [tensor.dtype for tensor in tensors]
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(device))

    @property
    def arrived(self) -> bool:
        """Whether `fetch` would not wait."""
        return self._arrived is None or bool(self._arrived.query())

    def fetch(self) -> list[Tensor]:
        """The tensors on the host; waits until the copy is complete."""
        if self._arrived is None:
            return self._tensors
        self._arrived.synchronize()
        return [tensor.to(dtype) for tensor, dtype in zip(self._tensors, self._dtypes, strict=True)]


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and mask `[rows, longest]`, the rows aligned at their ends; the mask is 0 on padding."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def pad_right(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Token ids `[rows, longest]`, the rows aligned at their starts."""
    longest = max(map(len, rows))
    return upload(torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows]), device)

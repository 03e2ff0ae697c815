"""One model's forward passes over a ragged cache: lean where the architecture is known, transformers' own elsewhere.

A GPU replays the lean pass as CUDA graphs.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.caches import (
    COLUMN_STEP,
    LONGEST,
    PassPlan,
    RaggedCache,
    are_contiguous,
    choose_device,
    keeps_state,
    longest_draft,
    read_layer_windows,
    round_up,
    upload,
)
from lm_eval_takeover.forward.lean_decoder import LeanDecoder, computes_bfloat16
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw_rows
from lm_eval_takeover.pair.member import Member

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def prepare_pass(member: Member) -> "ForwardPass | StatePass":
    """The pass of this model, prepared once. Raises ArgumentError for models that cannot be read in blocks."""
    if member.prepared_pass is None:
        member.prepared_pass = StatePass(member) if keeps_state(member.model.config) else ForwardPass(member)
    return member.prepared_pass  # type: ignore[no-any-return]


def release_memory(member: Member) -> None:
    """Drop the cache that this model's last run left for the next one."""
    if member.prepared_pass is not None:
        member.prepared_pass.left_reader = None


class StatePass:
    """A model with recurrent layers, which `state_reader` reads by transformers' own pass."""

    lean, graphed = None, False

    def __init__(self, member: Member) -> None:
        self.member, self.model = member, member.model
        self.left_reader: Any = None


class ForwardPass:
    """`forward(cache, slots, lengths, ids, vocab)` of one model.

    lean: None where transformers' own pass runs. `self_check` drops a lean pass that is wrong. graphed: in CUDA graphs.
    """

    def __init__(self, member: Member) -> None:
        self.member, self.model = member, member.model
        config = member.model.config
        name = f"{member.role}='{member.id.id}'"
        if member.cache_argument is None:
            raise ArgumentError(f"{name}: it has no cache of keys and values; use block_size=1")
        self.windows = read_layer_windows(config, name)
        if member.outgrows_rotation:
            reason = f"it rotates texts of more than {member.rotation_length} tokens otherwise, and a pass by its longest row"
            raise ArgumentError(f"{name}: {reason}; use block_size=1")
        if member.device.type == "cpu" and self.model.dtype == torch.bfloat16 and not computes_bfloat16():
            advice = f"{member.argument('dtype')}=float32 reads several tokens at once in less time, in up to twice the memory"
            logger.warning("%s is loaded in bfloat16, in which this CPU cannot compute: %s", name, advice)
        self._no_masks: list[Tensor | None] = [None] * len(self.windows)
        rotary = getattr(config.get_text_config(), "rope_parameters", None) is not None
        # A table of positions has an end. Most rotations have none.
        self._last_position = ((member.rotation_length if rotary else member.max_length) or 2**31) - 1
        self.lean = LeanDecoder(self.model) if LeanDecoder.supports(self.model) else None
        self.graphed = self.lean is not None and choose_device(member.device).type == "cuda"
        self.left_reader: Any = None  # of the last run: its graphs read its own tensors

    def __call__(
        self,
        cache: RaggedCache,
        slots: Sequence[int],
        lengths: Sequence[int],
        ids: Tensor,
        vocab: int,
        logits_at: Tensor | None = None,
    ) -> Tensor:
        """Read `ids` `[rows, new]` into these slots from their lengths on: float32 logits `[rows, new, vocab]`.

        `logits_at` `[rows]` picks one of each row's new tokens: `[rows, 1, vocab]`. With vocab 0 only the cache is filled.
        """
        new = ids.shape[1]
        plan = cache.plan = PassPlan(lengths, new, slots, self.member.device)
        if self.lean is not None:
            hidden = self.lean.compute_hidden(ids, self.build_masks(plan), cache)
            if logits_at is not None:
                hidden = hidden[torch.arange(len(hidden), device=plan.device), logits_at][:, None]
            return self.lean.compute_logits(hidden, vocab).contiguous().float() if vocab else hidden
        logits = self._run_transformers(cache, ids, keep=new if vocab and logits_at is None else 1)
        if logits_at is None or new == 1:
            return logits[..., :vocab].float()
        # The chosen tokens are read once more, over themselves, so that no other one needs its logits.
        chosen = ids.gather(1, logits_at[:, None])
        ends = [length + place for length, place in zip(lengths, logits_at.tolist(), strict=True)]
        return self(cache, slots, ends, chosen, vocab)

    def _run_transformers(self, cache: RaggedCache, ids: Tensor, keep: int) -> Tensor:
        """The last `keep` logits of each row by the model's own `forward`, along `cache.plan`."""
        masks: Any = self.build_masks(cache.plan, always=True)
        if len(set(self.windows)) == 1:
            mask = masks[0]
        else:  # one for each kind of layer
            sliding = next(mask for mask, window in zip(masks, self.windows, strict=True) if window is not None)
            mask = {"full_attention": masks[self.windows.index(None)], "sliding_attention": sliding}
        options = {"position_ids": cache.plan.positions.clamp(max=self._last_position), "logits_to_keep": keep}
        logits: Tensor = self.model(
            input_ids=ids,
            attention_mask=mask,
            use_cache=True,
            **{str(self.member.cache_argument): cache},
            **{name: value for name, value in options.items() if name in self.member.forward_arguments},
        ).logits
        return logits

    def build_masks(self, plan: PassPlan, *, always: bool = False) -> list[Tensor | None]:
        """One additive mask `[rows, 1, new, columns]` per layer: a query attends to its own column and those before it.

        None where every query attends to all columns, except with `always`.
        """
        sees_all = not always and plan.aligned_start is not None and plan.new == 1
        if sees_all and not any(self.windows):
            return self._no_masks
        masks: dict[int | None, Tensor | None] = {}
        for window in set(self.windows):
            if sees_all and (window is None or plan.columns <= window):
                masks[window] = None
                continue
            columns, positions = torch.arange(plan.columns, device=plan.device), plan.positions[..., None]
            hidden = columns > positions
            if window is not None:
                hidden |= columns <= positions - window
            mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=plan.device)
            masks[window] = mask.masked_fill_(hidden, -torch.inf)[:, None]
        return [masks[window] for window in self.windows]


class CudaGraphs:
    """CUDA graphs by key, captured at the key's first run. Without a GPU, or if a capture fails, everything runs eagerly."""

    def __init__(self, device: torch.device) -> None:
        self.enabled = device.type == "cuda"
        self._captured: dict[Hashable, tuple[Any, Any]] = {}
        self._pool: Any = None
        # Libraries keep a workspace per stream. It must outlive another model's graphs.
        self._stream: Any = None

    def clear(self) -> None:
        """Drop all graphs, after tensors that they use were replaced."""
        if self._captured:
            torch.cuda.synchronize()
        self._captured.clear()
        self._pool = None

    def run(self, key: Hashable, function: Callable[[], Result]) -> Result:
        """The result of `function`, which the next call overwrites. The function uses static tensors and may run twice."""
        if not self.enabled:
            return function()
        if key not in self._captured and not self._capture(key, function):
            return function()
        graph, result = self._captured[key]
        graph.replay()
        return result  # type: ignore[no-any-return]

    def _capture(self, key: Hashable, function: Callable[[], Any]) -> bool:
        current = torch.cuda.current_stream()
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # Run once first: libraries initialise at a first call, which cannot be captured.
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                result = function()
        except torch.OutOfMemoryError:
            torch.cuda.set_stream(current)
            raise
        except RuntimeError as error:
            torch.cuda.set_stream(current)
            logger.warning("CUDA graphs cannot be used: %s; continuing without them", str(error).splitlines()[0])
            self.enabled = False
            self.clear()
            return False
        self._pool = self._pool or graph.pool()
        self._captured[key] = graph, result
        return True


class GraphedPlan(PassPlan):
    """Every slot from its own length on; `positions` `[slots, new]` is a static tensor."""

    def __init__(self, positions: Tensor, columns: int) -> None:
        self.rows, self.new = positions.shape
        self.device, self.columns = positions.device, columns
        self.is_contiguous, self.aligned_start = True, None
        self.positions = positions


class GraphedPass:
    """The lean pass over the slots of one cache and static tensors, which a GPU replays as a CUDA graph. Tests run it eagerly.

    Launching kernels takes most of a small model's eager pass: 28 layers of a 0.6B model take nearly as long as 36 of an 8B one.
    Here the rows, new tokens and columns of a pass are rounded up to a few sizes. Positions are computed on the device. A drafted
    token goes from the draw into the next pass without the CPU. A pass covers the first slots. Slots without a row are computed,
    too, and write into columns from `lengths[slot]` on, which no query attends to. A pass attends only to the columns that its
    rows need. Underscored tensors `[slots, ...]` are static: no call replaces them.
    """

    def __init__(self, forward: ForwardPass, cache: RaggedCache, vocab: int) -> None:
        assert forward.lean is not None
        self.forward, self.lean, self.cache, self.vocab = forward, forward.lean, cache, vocab
        device, slots = forward.member.device, cache.slots
        self.device = device
        self.graphs = CudaGraphs(device)
        self._ids = torch.zeros(slots, LONGEST, dtype=torch.long, device=device)
        self._positions = torch.zeros_like(self._ids)
        self._lengths = torch.zeros(slots, 1, dtype=torch.long, device=device)
        self._steps = torch.arange(2 * LONGEST, device=device)  # offsets, and new tokens behind them
        self._logits_at = torch.zeros(slots, dtype=torch.long, device=device)
        self._words = torch.zeros(slots, dtype=torch.long, device=device)
        # All passes write their logits here, so graphs of many sizes share one buffer.
        self.longest = max(2, longest_draft(slots, vocab, device))  # new tokens of a row in a pass
        self._logits = torch.zeros(slots, self.longest, vocab, device=device)
        self._uploaded_lengths = [0] * slots
        self._replaceable: tuple[Any, ...] = ()  # tensors that the graphs use and their owners may replace
        layer = self.lean.layers[0]
        nothing = torch.zeros(slots, 0, layer.kv_heads, layer.head_dim, dtype=self.lean.embed.dtype, device=device)
        for cached in cache.layers:
            cached.buffers = (nothing, nothing)

    def read(
        self, lengths: Sequence[int], slots: Sequence[int], ids: Tensor, offset: int, logits_at: Tensor | None = None
    ) -> Tensor:
        """As `Reader.read` and, with `logits_at` `[rows]`, as `Reader.read_to_last`: `[rows, new or 1, vocab]`."""
        with self._on_device():
            rows, new, columns = self._fill(lengths, slots, ids, offset)
            every = logits_at is None
            if logits_at is not None:
                _write_slots(self._logits_at, slots, logits_at)
            logits = self.graphs.run((rows, new, columns, every), lambda: self._run(rows, new, columns, every))
            return _select_slots(logits[:, : ids.shape[1]] if every else logits, slots)

    def draft(
        self, lengths: Sequence[int], slots: Sequence[int], ids: Tensor, offset: int, at: Tensor, sampling: Sampling
    ) -> list[Tensor]:
        """As `Reader.draft`: logits, tokens and masses, which the next call overwrites."""
        with self._on_device():
            rows, new, columns = self._fill(lengths, slots, ids, offset)
            _write_slots(self._words, slots, at)

            def run() -> tuple[Tensor, Tensor, Tensor]:
                logits = self._run(rows, new, columns, True)[:, 0]
                return logits, *draw_rows(logits, self._words[:rows], sampling)

            results = self.graphs.run((rows, new, columns, sampling), run)
            return [_select_slots(result, slots) for result in results]

    def _on_device(self) -> Any:
        """Makes this device the current one, to which new streams, events and graphs belong."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _fill(self, lengths: Sequence[int], slots: Sequence[int], ids: Tensor, offset: int) -> tuple[int, int, int]:
        """Fill the static tensors. Returns `(rows, new, columns)`, rounded up; the rows are the first slots."""
        new = min(round_up(ids.shape[1]), self.longest)
        rows = min(1 << max(slots).bit_length(), self.cache.slots)  # few sizes: powers of two
        # All of these slots write. Those without a row may write behind the columns of this pass.
        self.cache.reserve(max(lengths[:rows]) + offset + new)
        columns = min(_round_up_to_power(max(lengths[slot] for slot in slots) + offset + new), self.cache.columns)
        current = (self.lean.prepare_rotations(self.cache.columns)[0], self.cache.layers[0].buffers)
        if not self._replaceable or any(a is not b for a, b in zip(current, self._replaceable, strict=True)):
            self.graphs.clear()
            self._replaceable = current
        if self._uploaded_lengths != list(lengths):
            self._uploaded_lengths = list(lengths)
            self._lengths.copy_(upload(torch.tensor(self._uploaded_lengths)[:, None], self.device))
        torch.add(self._lengths, self._steps[offset : offset + new], out=self._positions[:, :new])
        _write_slots(self._ids[:, : ids.shape[1]], slots, ids)
        return rows, new, columns

    def _run(self, rows: int, new: int, columns: int, every: bool) -> Tensor:
        """One pass over the first slots: logits `[rows, new, vocab]`, or `[rows, 1, vocab]` at `_logits_at`."""
        plan = self.cache.plan = GraphedPlan(self._positions[:rows, :new], columns)
        hidden = self.lean.compute_hidden(self._ids[:rows, :new], self.forward.build_masks(plan), self.cache)
        if not every:
            # Slots that do not take part have the place of an earlier pass.
            places = self._logits_at[:rows].clamp(max=new - 1)
            hidden = hidden.gather(1, places[:, None, None].expand(-1, 1, hidden.shape[-1]))
        logits = self._logits[:rows, : hidden.shape[1]]
        return logits.copy_(self.lean.compute_logits(hidden, self.vocab))


def _round_up_to_power(columns: int) -> int:
    """The columns that a pass attends to, rounded up: few sizes need few graphs."""
    return max(2 * COLUMN_STEP, 1 << (columns - 1).bit_length())


def _write_slots(static: Tensor, slots: Sequence[int], values: Tensor) -> None:
    """Write values `[rows, ...]` into these slots of a static tensor `[slots, ...]`."""
    if are_contiguous(slots):
        static[: len(slots)].copy_(values)
    else:
        static[upload(torch.tensor(slots), static.device)] = values


def _select_slots(values: Tensor, slots: Sequence[int]) -> Tensor:
    """The values `[slots, ...]` of these slots: `[rows, ...]`."""
    return values[: len(slots)] if are_contiguous(slots) else values[upload(torch.tensor(slots), values.device)]

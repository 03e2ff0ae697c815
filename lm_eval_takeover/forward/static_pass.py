"""The lean pass with tensors that never move, which a GPU replays as one graph.

A small model's eager pass is bound by the launches of its kernels: 28 layers of a 0.6B model then take nearly as long as 36 of an
8B one. Here every slot takes part in every pass, columns and block lengths are rounded up to a few sizes, positions are computed
on the device, and a drafted token goes from the pass through the draw into the next pass without the host waiting for it. Slots
without a row compute along: what they write lies behind their lengths, where nobody looks.

It is used on GPUs only. Elsewhere the same code would run eagerly, which is how it is tested.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from lm_eval_takeover.decoding.pace import LONGEST, longest_draft
from lm_eval_takeover.forward.ragged_cache import Plan, RaggedCache, are_first
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import HEAD, draw_from_head
from lm_eval_takeover.method.scores import entropy

if TYPE_CHECKING:
    from lm_eval_takeover.forward.reader import ForwardPass

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # new tokens of a pass: each has its graph
_COLUMNS = 256  # columns of the cache that passes look at, doubled where they do not suffice


class Later:
    """Small tensors `[rows]` on their way to the host."""

    def __init__(self, *tensors: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._values = torch.stack([tensor.double() for tensor in tensors])
        if self._values.device.type == "cuda":
            host = torch.empty(self._values.shape, dtype=torch.float64, pin_memory=True)
            self._values = host.copy_(self._values, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def lists(self) -> list[list[float]]:
        """Their values; waits until they are here."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values.tolist()


class Graphs:
    """CUDA graphs by key. `run` reads and writes static tensors only, and may be run more than once."""

    def __init__(self, device: torch.device) -> None:
        self.enabled = device.type == "cuda"
        self.captures = 0
        self._captured: dict[Hashable, tuple[Any, Any]] = {}
        self._pool: Any = None
        # A stream of its own: libraries keep a workspace per stream, which must not go away with another model's graphs.
        self._stream: Any = None

    def clear(self) -> None:
        """Drop all graphs, whose tensors have moved."""
        if self._captured:
            torch.cuda.synchronize()
        self._captured.clear()
        self._pool = None

    def __call__(self, key: Hashable, run: Callable[[], Result]) -> Result:
        """What `run` returns, in tensors that any next call overwrites."""
        if not self.enabled:
            return run()
        if key not in self._captured and not self._capture(key, run):
            return run()
        graph, result = self._captured[key]
        graph.replay()
        return result  # type: ignore[no-any-return]

    def _capture(self, key: Hashable, run: Callable[[], Any]) -> bool:
        current = torch.cuda.current_stream()
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # Once beside the stream, since libraries prepare themselves at a first call, which cannot be captured.
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                result = run()
        except torch.OutOfMemoryError:
            torch.cuda.set_stream(current)
            raise
        except RuntimeError as error:
            torch.cuda.set_stream(current)
            logger.warning("CUDA graphs cannot be used: %s; going on without them", str(error).splitlines()[0])
            self.enabled = False
            self.clear()
            return False
        self._pool = self._pool or graph.pool()
        self._captured[key] = graph, result
        self.captures += 1
        return True


class StaticPlan(Plan):
    """Every slot from its own place on; `places` `[slots, new]` is a static tensor."""

    def __init__(self, places: Tensor, columns: int) -> None:
        self.count, self.new = places.shape
        self.device, self.columns = places.device, columns
        self.slots, self.start = None, None
        self.places = places


class StaticPass:
    """Passes of one model over all slots of one cache."""

    def __init__(self, forward: "ForwardPass", cache: RaggedCache, vocab: int) -> None:
        assert forward.lean is not None
        self.forward, self.lean, self.cache, self.vocab = forward, forward.lean, cache, vocab
        device, slots = forward.member.device, cache.slots
        self.device = device
        self.graphs = Graphs(device)
        self._ids = torch.zeros(slots, LONGEST, dtype=torch.long, device=device)
        self._places = torch.zeros_like(self._ids)
        self._lengths = torch.zeros(slots, 1, dtype=torch.long, device=device)
        self._steps = torch.arange(LONGEST, device=device)
        self._only = torch.zeros(slots, dtype=torch.long, device=device)
        self._uniform = torch.zeros(slots, dtype=torch.float64, device=device)
        # All passes leave their logits here, so that graphs of many sizes do not each hold their own.
        self._logits = torch.zeros(slots, longest_draft(slots, vocab), vocab, device=device)
        self._uploaded = [0] * slots
        self._columns = _COLUMNS
        self._moved: tuple[Any, ...] = ()
        self._head, self._sure, self._unsure = HEAD, 0, 0

    def takes(self, ids: Tensor) -> bool:
        """Whether passes over ids `[rows, new]` go this way: those short enough, once something was read."""
        return ids.shape[1] <= self._logits.shape[1] and self.cache.columns > 0

    def logits(
        self, lengths: Sequence[int], slots: Sequence[int], ids: Tensor, ahead: int, only: Tensor | None = None
    ) -> Tensor:
        """As `Reader.read` and, with `only` `[rows]`, as `Reader.read_to_last`: `[rows, new or 1, vocab]`."""
        with self._on_device():
            size = self._prepare(lengths, slots, ids, ahead)
            if only is not None:
                _put(self._only, slots, only)
            found = self.graphs((*size, only is None), lambda: self._run(*size, only is not None))
            return _take(found if only is not None else found[:, : ids.shape[1]], slots)

    def _on_device(self) -> Any:
        """Streams, events and graphs belong to the device that is the current one."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def drafted(
        self,
        lengths: Sequence[int],
        slots: Sequence[int],
        ids: Tensor,
        ahead: int,
        uniform: Tensor,
        sampling: Sampling,
    ) -> tuple[Tensor, Tensor, Later]:
        """As `Reader.draft`. Logits and tokens are overwritten by the next call."""
        with self._on_device():
            new, columns = self._prepare(lengths, slots, ids, ahead)
            _put(self._uniform, slots, uniform)

            def run() -> tuple[Tensor, Tensor, Tensor, Tensor]:
                logits = self._run(new, columns, False)[:, 0]
                tokens, sure = draw_from_head(logits, self._uniform, sampling, self._head)
                return logits, tokens, sure, entropy(logits)

            found = self.graphs((new, columns, sampling, self._head), run)
            logits, tokens, sure, entropies = (_take(one, slots) for one in found)
            return logits, tokens, Later(tokens, sure, entropies)

    def was_sure(self, sure: bool) -> None:
        """Whether a draw fell into the head. Where too many do not, more of the vocabulary is sorted from now on."""
        self._sure, self._unsure = self._sure + sure, self._unsure + (not sure)
        if self._unsure >= 4 and self._unsure > 0.02 * self._sure:
            self._head, self._sure, self._unsure = min(self._head * 8, self.vocab), 0, 0

    def _prepare(self, lengths: Sequence[int], slots: Sequence[int], ids: Tensor, ahead: int) -> tuple[int, int]:
        """Fill the static tensors; `(new, columns)`, both rounded up."""
        new = min(next(size for size in _SIZES if size >= ids.shape[1]), self._logits.shape[1])
        while self._columns < max(lengths) + ahead + new:
            self._columns *= 2  # and never back, so that there are graphs of one number of columns at a time
        columns = self._columns
        self.cache.reserve(columns)
        moved = (columns, self.lean.rotations(columns)[0], self.cache.layers[0].buffers)
        if not self._moved or any(one is not other for one, other in zip(moved, self._moved, strict=True)):
            self.graphs.clear()
            self._moved = moved
        if self._uploaded != list(lengths):
            self._uploaded = list(lengths)
            self._lengths.copy_(torch.tensor(self._uploaded)[:, None])
        torch.add(self._lengths + ahead, self._steps[:new], out=self._places[:, :new])
        _put(self._ids[:, : ids.shape[1]], slots, ids)
        return new, columns

    def _run(self, new: int, columns: int, only: bool) -> Tensor:
        plan = self.cache.plan = StaticPlan(self._places[:, :new], columns)
        hidden = self.lean.hidden(self._ids[:, :new], self.forward.masks(plan), self.cache)
        if only:
            chosen = self._only.clamp(max=new - 1)  # of slots that do not take part, it is from an earlier pass
            hidden = hidden.gather(1, chosen[:, None, None].expand(-1, 1, hidden.shape[-1]))
        logits = self._logits[:, : hidden.shape[1]]
        return logits.copy_(self.lean.logits(hidden, self.vocab))


def _put(static: Tensor, slots: Sequence[int], values: Tensor) -> None:
    """Write the values of these slots."""
    if are_first(slots):
        static[: len(slots)].copy_(values)
    else:
        static[torch.tensor(slots, device=static.device)] = values


def _take(values: Tensor, slots: Sequence[int]) -> Tensor:
    """The values of these slots."""
    return values[: len(slots)] if are_first(slots) else values[torch.tensor(slots, device=values.device)]

"""Rows in slots: what every way of advancing them shares.

When a row finishes, its slot takes the next request at once, so a straggler holds up nobody. When memory runs out, half as many
slots go on, and every row reads its text again: nothing that was emitted is lost. When a pass fails for another reason, halves
are tried until the request that makes it fail is alone; the others go on without it.
"""

import logging
import traceback
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.decoding.failures import Failures
from lm_eval_takeover.decoding.stop_strings import StopStrings
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.forward_pass import ForwardPass
from lm_eval_takeover.forward.padding import pad_right
from lm_eval_takeover.forward.reader import Reader
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.policies import Policy
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.method.sampling import request_digest, uniforms

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Due:
    """What is known of a row whose next token is the donor's: score, window behind it, for traces the host's logits `[vocab]`."""

    score: float
    window: Tensor | None
    logits: Tensor | None = None


@dataclass(slots=True)
class Row:
    """One sample while it is being written. Numbers and window are made when it gets a slot."""

    index: int
    request: Request
    stop: StopStrings
    early: int
    generation: Generation = field(default_factory=Generation)
    uniforms: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    chances: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    recent: Tensor | None = None  # `[window]`, the last scores
    due: Due | None = None  # where the next token is the donor's

    @property
    def text(self) -> tuple[int, ...]:
        """Prompt and all that was emitted."""
        return (*self.request.prompt, *self.generation.tokens)

    @property
    def position(self) -> int:
        """Tokens emitted so far: `t`."""
        return len(self.generation.tokens)

    @property
    def remaining(self) -> int:
        return self.request.max_new_tokens - self.position

    def token(self, place: int) -> int:
        """The token at `place` of the whole text, prompt included."""
        prompt = self.request.prompt
        return prompt[place] if place < len(prompt) else self.generation.tokens[place - len(prompt)]

    @property
    def last(self) -> int:
        """The last token of the text, which no model has read yet."""
        return self.token(self.length - 1)

    @property
    def length(self) -> int:
        return len(self.request.prompt) + self.position


class Pool(ABC):
    """The rows of one kind of sampling: slots, the readers of the models that the policy asks, and the requests that wait."""

    def __init__(
        self,
        policy: Policy,
        passes: dict[str, ForwardPass],
        waiting: Sequence[tuple[int, Request]],
        *,
        vocab: int,
        stops: Callable[[tuple[str, ...]], StopStrings],
        eos: frozenset[int],
        seed: int,
        batch_size: int,
        block_size: int | None,
        failures: Failures,
        traced: bool = False,
    ) -> None:
        self.policy, self.eos, self.seed, self.block_size = policy, eos, seed, block_size
        self.failures, self.traced = failures, traced
        self.sampling: Sampling = waiting[0][1].sampling
        self.waiting = deque(
            Row(
                index,
                request,
                stops(request.until),
                request.early_tokens or policy.early_tokens or 0,
                Generation(observed=array("f") if traced else None),
            )
            for index, request in waiting
        )
        self.slots: list[Row] = []
        self._wanted = min(batch_size, len(waiting))
        self.size = self.most = self._wanted  # slots now, and how many there are when nothing is wrong
        self._in_vain = 0  # times that no request was to blame
        self._suspects: dict[int, int] = {}  # after a pass failed: its rows by index, and their positions then
        self.readers = {role: Reader(one, self.size, vocab) for role, one in passes.items()}
        self.device = next(iter(self.readers.values())).device
        self._prefilled: dict[tuple[int, ...], tuple[int, dict[str, Reader]]] = {}

    def run(self) -> Iterator[tuple[int, Generation]]:
        """Every request to its end: `(its index, generation)` as it finishes."""
        while self.slots or self.waiting:
            finished = self._attempt()
            if isinstance(finished, RuntimeError) and _out_of_memory(finished):
                self.halve()
                continue
            if isinstance(finished, Exception):
                self.isolate(finished)
                continue
            done = {self.slots[slot].index for slot in finished}
            for slot in finished:
                generation = self.slots[slot].generation
                for role in self.policy.roles:
                    # The first pass also reads the end of the prompt: prefill.
                    generation.count_passes(role, -1)
                self.failures.succeeded()
                yield self.slots[slot].index, generation
            self.release(finished)
            if self._suspects:
                self._acquit(done)

    def _attempt(self) -> list[int] | Exception:
        """Refill and advance; what was raised instead. Its stack is a note then: frames hold on to memory."""
        try:
            if self.waiting and len(self.slots) < self.size:
                self.refill()
            return self.advance()
        except Exception as error:
            error.add_note("".join(traceback.format_tb(error.__traceback__)))
            return error.with_traceback(None)

    @abstractmethod
    def advance(self) -> list[int]:
        """Emit at least one token; returns the slots whose text has ended."""

    # Slots

    def refill(self) -> None:
        """Waiting rows into free slots. A prompt is read once per model for all its samples."""
        free = self.size - len(self.slots)
        taken = list(islice(self.waiting, free))
        # All but the last token: the first pass of a block reads it, as it reads the last token of any other block.
        texts = [row.text[:-1] for row in taken]
        new = list(dict.fromkeys(text for text in texts if text not in self._prefilled))
        if new:
            read = {role: reader.prefill(new) for role, reader in self.readers.items()}
            self._prefilled |= {text: (place, read) for place, text in enumerate(new)}
        for row, text in zip(taken, texts, strict=True):
            place, read = self._prefilled[text]
            for role, reader in self.readers.items():
                reader.copy_row(read[role], place, len(self.slots))
            self._begin(row)
            self.slots.append(self.waiting.popleft())  # in both places or in none, whenever memory runs out
        wanted = {row.request.prompt[:-1] for row in self.waiting}
        self._prefilled = {text: held for text, held in self._prefilled.items() if text in wanted}

    def _begin(self, row: Row) -> None:
        """The row's random numbers and its empty window; what a row that waits has already, it keeps."""
        if row.recent is None:
            digest, count = request_digest(row.request.prompt), row.request.max_new_tokens
            row.uniforms = uniforms(self.seed, digest, row.request.sample, count)
            if self.policy.name == "random":
                row.chances = uniforms(self.seed, digest, row.request.sample, count, stream="takeover")
            row.recent = (self.policy.gate or Gate(0.0)).empty(1, self.device)[0]

    def halve(self) -> None:
        """After memory ran out: half as many slots, and every row reads its text again; a row that is too much alone fails."""
        if self.size == 1:
            row = self._taken_out()
            self._suspects.pop(row.index, None)
            advice = "not enough memory for one sample; give a shorter max_length=… or a smaller dtype=…"
            self.failures.add(row.request, ArgumentError(f"{row.request.label}: {advice}"))
            self.most = self._wanted  # the others may be shorter
            self._begin_again(self.most)
            return
        self.most = self.size // 2
        self._begin_again(self.most)
        logger.warning("out of memory; going on with a batch size of %d", self.size)

    def isolate(self, error: Exception) -> None:
        """After a pass failed: half as many slots, until the request that fails is alone; without it, all slots again."""
        together = [*self.slots, *islice(self.waiting, self.size - len(self.slots))]
        if not self._suspects:
            self._suspects = {row.index: row.position for row in together}
        if len(together) > 1:
            self._begin_again(len(together) // 2)
            return
        self.failures.add(self._taken_out().request, error)
        self._suspects = {}
        self._begin_again(self.most)

    def _taken_out(self) -> Row:
        """The one row at hand, which waits no more."""
        return self.slots.pop() if self.slots else self.waiting.popleft()

    def _acquit(self, done: set[int]) -> None:
        """Rows that got on are no suspects; once those at work have, the others take their turn, and then all slots are back."""
        here = {row.index for row in self.slots}
        for row in self.slots:
            if row.position > self._suspects.get(row.index, row.position):
                del self._suspects[row.index]
        for index in done & self._suspects.keys():
            del self._suspects[index]
        if not self._suspects:
            self._in_vain += 1
            if self._in_vain > 2:  # it is so many rows at once that fail
                self.most = self.size
            logger.warning(
                "a pass failed, and its rows went through in smaller batches; going on with %d rows", self.most
            )
            self._begin_again(self.most)
        elif not here & self._suspects.keys():
            self._begin_again(self.size)
            first = [row for row in self.waiting if row.index in self._suspects]
            rest = [row for row in self.waiting if row.index not in self._suspects]
            self.waiting = deque([*first, *rest])

    def _begin_again(self, size: int) -> None:
        """So many slots, all free: their rows wait again, before the others, with what they have written."""
        self.waiting.extendleft(reversed(self.slots))
        self.slots, self._prefilled, self.size = [], {}, size
        self.readers = {role: Reader(reader.forward, size, reader.vocab) for role, reader in self.readers.items()}

    def release(self, finished: Sequence[int]) -> None:
        """Free these slots; the last rows move into their places."""
        for slot in sorted(finished, reverse=True):
            last = len(self.slots) - 1
            if slot != last:
                for reader in self.readers.values():
                    reader.move_row(last, slot)
                self.slots[slot] = self.slots[last]
            self.slots.pop()
            for reader in self.readers.values():
                reader.lengths[last] = 0

    # Tokens

    def numbers(self, slots: Sequence[int], count: int) -> NDArray[np.float64]:
        """The uniform numbers of the next `count` positions: `[rows, count]`; 0 behind the last position that there is."""
        found = np.zeros((len(slots), count))
        for place, slot in enumerate(slots):
            row = self.slots[slot]
            part = row.uniforms[row.position : row.position + count]
            found[place, : len(part)] = part
        return found

    def windows(self, slots: Sequence[int]) -> Tensor:
        """The last scores of these rows: `[rows, window]`."""
        recent = (self.slots[slot].recent for slot in slots)
        return torch.stack([window for window in recent if window is not None])

    def positions(self, slots: Sequence[int]) -> Tensor:
        """Tokens emitted so far by these rows: `[rows]`."""
        return torch.tensor([self.slots[slot].position for slot in slots], device=self.device)

    def emit(
        self,
        slot: int,
        tokens: Sequence[int],
        taken: Sequence[bool],
        scores: Sequence[float],
        observed: NDArray[np.float32] | None,
    ) -> tuple[int, bool]:
        """Append tokens until one ends the text: `(how many were emitted, whether the text has ended)`.

        `observed` `[tokens or more, 4]` goes into the trace, where there is one.
        """
        written, ended = self._append(slot, tokens, taken, scores)
        trace = self.slots[slot].generation.observed
        if trace is not None and observed is not None:
            trace.frombytes(observed[:written].tobytes())
        return written, ended

    def _append(
        self, slot: int, tokens: Sequence[int], taken: Sequence[bool], scores: Sequence[float]
    ) -> tuple[int, bool]:
        row = self.slots[slot]
        generation = row.generation
        stops = row.stop.may_end_in(generation.tokens, tokens)
        for count, (token, takeover, score) in enumerate(zip(tokens, taken, scores, strict=True), 1):
            generation.tokens.append(token)
            generation.taken_over.append(takeover)
            generation.scores.append(score)
            if row.remaining == 0 or token in self.eos or (stops and row.stop.found(generation.tokens)):
                return count, True
        return len(tokens), False

    def name(self, slot: int) -> str:
        row = self.slots[slot]
        return f"token {row.position} of {row.request.label}"

    def unread(self, role: str, slots: Sequence[int]) -> tuple[Tensor, list[int]]:
        """What a model has not read yet of these rows, `[rows, longest]` padded behind, and how many tokens each."""
        reader = self.readers[role]
        tokens = [
            [self.slots[slot].token(place) for place in range(reader.lengths[slot], self.slots[slot].length)]
            for slot in slots
        ]
        counts = [len(one) for one in tokens]
        return pad_right(tokens, self.device), counts

    def ask(self, role: str, slots: Sequence[int]) -> Tensor:
        """The next-token logits `[rows, vocab]` of a model that first reads what it has skipped."""
        ids, counts = self.unread(role, slots)
        reader = self.readers[role]
        logits = reader.read_to_last(slots, ids, counts)
        reader.forward.member.check_logits(logits, lambda i: self.name(slots[i]))
        for slot, count in zip(slots, counts, strict=True):
            reader.lengths[slot] += count
            self.slots[slot].generation.count_passes(role, 1)
        return logits.to(self.device)


_MEMORY = ("can't allocate memory", "out of memory", "ALLOC_FAILED")


def _out_of_memory(error: RuntimeError) -> bool:
    """On a GPU a class of its own, or a message of its libraries; on a CPU a message of the allocator."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _MEMORY)

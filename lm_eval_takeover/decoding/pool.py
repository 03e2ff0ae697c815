"""Rows in slots, for blocks and for steps. A finished row's slot takes the next request at once."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.decoding.rows import Row, blame
from lm_eval_takeover.forward.caches import LONGEST
from lm_eval_takeover.forward.forward_pass import ForwardPass, StatePass
from lm_eval_takeover.forward.reader import Drafted, Reader, take_reader
from lm_eval_takeover.forward.transfers import choose_device, pad_right
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import CountTokens, Generation, Sampling
from lm_eval_takeover.pair.pair import Pair

_PREFILL_AT_ONCE = 2**14  # tokens, padding included, that are prefilled together before they are copied into slots


class Pool:
    """Rows of one sampling: their slots, the readers of the policy's models, and the waiting requests."""

    def __init__(
        self,
        pair: Pair,
        policy: Policy,
        passes: dict[str, ForwardPass | StatePass],
        waiting: Sequence[Row],
        *,
        batch_size: int,
        seed: int = 0,
        count_tokens: CountTokens | None = None,
    ) -> None:
        self.policy, self.passes, self.seed = policy, dict(passes), seed
        self.vocab, self.eos = pair.vocab_size, pair.eos_ids
        self.count_tokens, self.traced = count_tokens, waiting[0].generation.observed is not None
        self.donor = policy.writes(taken_over=True)
        self.sampling: Sampling = waiting[0].request.sampling
        self.waiting, self._entering = deque(waiting), deque[Row]()
        self.size = min(batch_size, len(waiting))  # slots
        longest = max(len(row.request.prompt) + row.request.max_new_tokens for row in waiting)
        self.columns = LONGEST + longest
        self.slots: list[Row] = []
        self.finished: list[int] = []  # slots whose text has ended in this step
        self.readers: dict[str, Reader] = {}
        self.device = choose_device(next(iter(passes.values())).member.device)
        self._prefilled: dict[tuple[int, ...], tuple[int, dict[str, Reader]]] = {}  # by text: its row in these readers

    def run(self, advance: Callable[[list[int]], None]) -> Iterator[tuple[int, Generation]]:
        """Every request to its end: `(its index, generation)` as it finishes, also if another one's pass fails.

        advance: emits tokens of these slots.
        """
        while self.slots or self.waiting:
            try:
                self.admit()
                advance(list(range(len(self.slots))))
            except Exception as error:
                blame(error, (row.index for row in (*self.slots, *self._entering)))
                yield from map(self._finish, self.finished)
                raise
            yield from map(self._finish, self.finished)
            self._release()
        for reader in self.readers.values():
            reader.leave()

    # Slots

    def admit(self) -> None:
        """Put waiting rows into free slots. A prompt is prefilled once per model for all its samples."""
        free = min(self.size - len(self.slots), len(self.waiting))
        if not free:
            return
        if not self.readers:
            self.readers = {
                role: take_reader(forward, self.size, self.vocab, self.columns) for role, forward in self.passes.items()
            }
        self._entering = deque(self.waiting.popleft() for _ in range(free))
        while self._entering:
            texts = [text for text in self._next_texts() if text not in self._prefilled]
            if texts:
                read = {role: reader.prefill(texts) for role, reader in self.readers.items()}
                self._prefilled |= {text: (place, read) for place, text in enumerate(texts)}
            self._place_prefilled()

    def _next_texts(self) -> list[tuple[int, ...]]:
        """The first texts of the entering rows, which are prefilled together: one, and more up to a number of tokens.

        All but the last token, which a row's first pass reads.
        """
        texts: dict[tuple[int, ...], None] = {}
        for row in self._entering:
            text = row.text[:-1]
            if texts and (len(texts) + 1) * max(len(text), *map(len, texts)) > _PREFILL_AT_ONCE:
                break
            texts[text] = None
        return list(texts)

    def _place_prefilled(self) -> None:
        """Put prefilled rows into slots."""
        while self._entering and (text := self._entering[0].text[:-1]) in self._prefilled:
            row = self._entering.popleft()
            place, read = self._prefilled[text]
            for role, reader in self.readers.items():
                reader.copy_row(read[role], place, len(self.slots))
            row.begin(self.policy, self.seed, self.device)
            self.slots.append(row)
        # Samples of one prompt stand next to each other: no other text is needed once more.
        following = next(iter((*self._entering, *islice(self.waiting, 1))), None)
        needed = following.text[:-1] if following is not None else None
        self._prefilled = {text: prefilled for text, prefilled in self._prefilled.items() if text == needed}

    def _finish(self, slot: int) -> tuple[int, Generation]:
        row = self.slots[slot]
        for role in self.passes:
            row.generation.count_passes(role, -1)  # the first pass also reads the end of the prompt: prefill
        return row.index, row.generation

    def _release(self) -> None:
        """Free the slots of finished rows. The last rows move into them."""
        for slot in sorted(self.finished, reverse=True):
            last = len(self.slots) - 1
            if slot != last:
                for reader in self.readers.values():
                    reader.copy_row(reader, last, slot)
                self.slots[slot] = self.slots[last]
            self.slots.pop()
            for reader in self.readers.values():
                reader.lengths[last] = 0
        self.finished = []

    def drop(self, role: str) -> None:
        """Go on without this model."""
        del self.passes[role]
        self.readers.pop(role).leave()
        for row in (*self.slots, *self.waiting):
            row.generation.count_passes(role, -1)  # the first pass also reads the end of the prompt: prefill

    # Tokens

    def rows(self, slots: Sequence[int]) -> list[Row]:
        return [self.slots[slot] for slot in slots]

    def emit(
        self,
        slot: int,
        tokens: Sequence[int],
        taken: Sequence[bool],
        scores: Sequence[float],
        observed: NDArray[np.float32] | None,
    ) -> tuple[int, bool]:
        """`Row.emit`, counted. The slot of a row that has ended joins `finished`."""
        count, ended = self.slots[slot].emit(tokens, taken, scores, observed, self.eos)
        if ended:
            self.finished.append(slot)
        if self.count_tokens is not None:
            self.count_tokens(count, sum(taken[:count]))
        return count, ended

    def unread(self, role: str, slots: Sequence[int]) -> tuple[Tensor, list[int]]:
        """The tokens that a model has not read yet, `[rows, longest]`, right padded, and their numbers."""
        lengths = self.readers[role].lengths
        tokens = []
        for slot in slots:
            row = self.slots[slot]
            tokens.append([row.token(place) for place in range(lengths[slot], row.length)])
        return pad_right(tokens, self.device), [len(row) for row in tokens]

    def draw_first(self, role: str, groups: Sequence[Sequence[int]], at: Tensor) -> Drafted:
        """Read the skipped tokens of groups of slots, one pass for each group, and draw the next token of each row.

        at: words `[rows]`, group after group. Under `drawing`. Lengths end before the last token: drawn ones are at 1, 2, ….
        """
        reader, parts = self.readers[role], []
        for group in groups:
            ids, counts = self.unread(role, group)
            if len(groups) == 1 and ids.shape[1] == 1:
                return reader.draft(group, ids, 0, at, self.sampling)
            logits = reader.read_to_last(group, ids, counts)
            parts.append(logits.clone() if len(groups) > 1 else logits)  # the next pass overwrites what a pass returns
            for slot in group:  # slots compute along in the next group's pass: they write behind what they have read
                reader.lengths[slot] = self.slots[slot].length
        for slot in chain.from_iterable(groups):
            reader.lengths[slot] = self.slots[slot].length - 1
        return reader.draw(torch.cat(parts) if len(parts) > 1 else parts[0], at, self.sampling)

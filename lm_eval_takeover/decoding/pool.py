"""Rows in slots, for blocks and for steps.

A finished row's slot takes the next request at once. A failed pass is repeated on halves of its rows until the failing request is
alone. If memory runs out, the number of slots is halved and every row reads its text again; emitted tokens stay. After the rows
that were too many are finished, it doubles again.
"""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.decoding.failures import Failures
from lm_eval_takeover.decoding.rows import Row
from lm_eval_takeover.decoding.stop_strings import StopStrings
from lm_eval_takeover.errors import ArgumentError, PluginError, is_out_of_memory
from lm_eval_takeover.forward.forward_pass import ForwardPass, StatePass
from lm_eval_takeover.forward.ragged_cache import LONGEST
from lm_eval_takeover.forward.reader import Drafted, Reader, take_reader
from lm_eval_takeover.forward.transfers import choose_device, pad_right
from lm_eval_takeover.method.generation import CountTokens, Generation
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.pair import Pair

logger = logging.getLogger(__name__)

_PREFILL_AT_ONCE = 2**14  # tokens, padding included, that are prefilled together before they are copied into slots


class Pool(ABC):
    """Rows of one sampling: their slots, the readers of the policy's models, and the waiting requests."""

    def __init__(
        self,
        pair: Pair,
        policy: Policy,
        passes: dict[str, ForwardPass | StatePass],
        waiting: Sequence[tuple[int, Request]],
        *,
        batch_size: int,
        block_size: int | None,
        failures: Failures,
        seed: int = 0,
        traced: bool = False,
        count_tokens: CountTokens | None = None,
    ) -> None:
        self.policy, self.passes, self.seed = policy, dict(passes), seed
        self.vocab, self.eos, stops = pair.vocab_size, pair.eos_ids, cache(partial(StopStrings, pair.tokenizer))
        self.block_size, self.failures, self.traced = block_size, failures, traced
        self.count_tokens = count_tokens
        self.host, self.donor = policy.writes(taken_over=False), policy.writes(taken_over=True)
        self.sampling: Sampling = waiting[0][1].sampling
        rows = (Row(i, request, stops(request.until), Generation.begin(request, traced)) for i, request in waiting)
        self.waiting = deque(rows)
        self.batch_size = self.size = min(batch_size, len(waiting))  # slots: as asked for, and as there are now
        self._before_more = set[int]()  # indices of rows that must finish before the number of slots grows again
        longest = max(len(request.prompt) + request.max_new_tokens for _, request in waiting)
        self.columns = LONGEST + longest
        self.slots: list[Row] = []
        self.readers: dict[str, Reader] = {}
        self.device = choose_device(next(iter(passes.values())).member.device)
        self._prefilled: dict[tuple[int, ...], tuple[int, dict[str, Reader]]] = {}  # by text: its row in these readers

    def run(self) -> Iterator[tuple[int, Generation]]:
        """Every request to its end: `(its index, generation)` as it finishes."""
        while self.slots or self.waiting:
            finished: list[int] = []
            failed: list[int] = []
            enough = self._advance_all(finished, failed)
            for slot in finished:
                row = self.slots[slot]
                for role in self.passes:
                    row.generation.count_passes(role, -1)  # the first pass also reads the end of the prompt: prefill
                self.failures.succeeded()
                yield row.index, row.generation
            self._before_more -= {self.slots[slot].index for slot in (*finished, *failed)}
            self.release([*finished, *failed])
            if not enough:
                self._shrink()
            elif self.size < self.batch_size and not self._before_more and self.waiting:
                self._restart(min(2 * self.size, self.batch_size))
                logger.info("trying batch size %d again", self.size)
        for reader in self.readers.values():
            reader.leave()

    @abstractmethod
    def advance(self, slots: Sequence[int], finished: list[int]) -> None:
        """Emit tokens of these slots. A slot whose text has ended joins `finished` at once.

        After a failed pass it can be called again for the other slots: no emitted token and no decision is lost.
        """

    # Failures

    def _advance_all(self, finished: list[int], failed: list[int]) -> bool:
        """Fill the slots and advance them. False if memory ran out; the failed frames are freed by then.

        Ended and failed slots are recorded at once, so a later failure in the same round loses none.
        """
        try:
            self.admit()
            self._advance_or_halve(list(range(len(self.slots))), finished, failed)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return False
        return True

    def _advance_or_halve(self, slots: list[int], finished: list[int], failed: list[int]) -> None:
        """A row that fails alone joins `failed`; a plug-in that fails ends the run."""
        if not slots:
            return
        try:
            self.advance(slots, finished)
            return
        except Exception as error:
            if isinstance(error, PluginError) or is_out_of_memory(error):
                raise
            left = [slot for slot in slots if slot not in finished]
            if len(slots) == 1:
                for slot in left:
                    self.failures.add(self.slots[slot].request, error)
                    failed.append(slot)
                    for reader in self.readers.values():
                        reader.erase(slot)
                return
        half = (len(left) + 1) // 2
        self._advance_or_halve(left[:half], finished, failed)
        self._advance_or_halve(left[half:], finished, failed)

    def _shrink(self) -> None:
        """After memory ran out: half as many slots."""
        self._restart(self.size // 2)
        if self.size:
            logger.warning("out of memory; continuing with batch size %d", self.size)
            return
        request = self.waiting.popleft().request
        advice = "not enough memory for one sample; give a shorter max_length=… or a smaller dtype=…"
        self.failures.add(request, ArgumentError(f"{request.label}: {advice}"))
        self.size, self._before_more = self.batch_size, set()  # the others may be shorter

    def _restart(self, size: int) -> None:
        """Change the number of slots. Rows in slots wait again, before the others, and keep their texts."""
        self.waiting.extendleft(reversed(self.slots))
        self._before_more = {row.index for row in islice(self.waiting, max(size, self.size))}
        self.slots, self.readers, self._prefilled, self.size = [], {}, {}, size

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
        entering = deque(self.waiting.popleft() for _ in range(free))
        try:
            while entering:
                broken = self._prefill(self._next_texts(entering))
                self._place_prefilled(entering, broken)
        finally:
            self.waiting.extendleft(reversed(entering))  # none, unless memory ran out

    @staticmethod
    def _next_texts(entering: Sequence[Row]) -> list[tuple[int, ...]]:
        """The first texts of these rows, which are prefilled together: one, and more up to a number of tokens."""
        texts: dict[tuple[int, ...], None] = {}
        for row in entering:
            text = row.text[:-1]
            if texts and (len(texts) + 1) * max(len(text), *map(len, texts)) > _PREFILL_AT_ONCE:
                break
            texts[text] = None
        return list(texts)

    def _place_prefilled(self, entering: deque[Row], broken: dict[tuple[int, ...], Exception]) -> None:
        """Put prefilled rows into slots. Requests whose text is broken fail."""
        while entering:
            text = entering[0].text[:-1]
            if text in broken:
                self.failures.add(entering[0].request, broken[text])
            elif text in self._prefilled:
                place, read = self._prefilled[text]
                for role, reader in self.readers.items():
                    reader.copy_row(read[role], place, len(self.slots))
                entering[0].begin(self.policy, self.seed, self.device)
                self.slots.append(entering[0])
            else:
                break
            entering.popleft()
        # Samples of one prompt stand next to each other: no other text is needed once more.
        following = entering[0] if entering else self.waiting[0] if self.waiting else None
        needed = following.text[:-1] if following is not None else None
        self._prefilled = {text: prefilled for text, prefilled in self._prefilled.items() if text == needed}

    def _prefill(self, texts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Exception]:
        """Prefill these texts but for the last token, which a row's first pass reads. Returns errors by text."""
        new = [text for text in texts if text not in self._prefilled]
        if not new:
            return {}
        try:
            read = {role: reader.prefill(new) for role, reader in self.readers.items()}
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if len(new) == 1:
                return {new[0]: error}
        else:
            self._prefilled |= {text: (place, read) for place, text in enumerate(new)}
            return {}
        half = len(new) // 2
        return self._prefill(new[:half]) | self._prefill(new[half:])

    def release(self, slots: Sequence[int]) -> None:
        """Free these slots. The last rows move into them."""
        for slot in sorted(slots, reverse=True):
            last = len(self.slots) - 1
            if slot != last:
                for reader in self.readers.values():
                    reader.copy_row(reader, last, slot)
                self.slots[slot] = self.slots[last]
            self.slots.pop()
            for reader in self.readers.values():
                reader.lengths[last] = 0

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
        """Append tokens until one ends the text. Returns the number of appended tokens, and whether the text has ended.

        observed: `[tokens or more, OBSERVED]`, for the trace, if there is one.
        """
        row, generation = self.slots[slot], self.slots[slot].generation
        count, ended = row.stop.extend(generation.tokens, tokens, row.request.max_new_tokens, self.eos)
        generation.taken_over += taken[:count]
        generation.scores += scores[:count]
        if generation.observed is not None and observed is not None:
            generation.observed.frombytes(observed[:count].tobytes())
        if self.count_tokens is not None:
            self.count_tokens(count, sum(taken[:count]))
        return count, ended

    def unread(self, role: str, slots: Sequence[int]) -> tuple[Tensor, list[int]]:
        """The tokens that a model has not read yet, `[rows, longest]`, right padded, and their numbers."""
        lengths = self.readers[role].lengths
        tokens = []
        for slot in slots:
            row = self.slots[slot]
            # If another pass failed after this model's, the last token is read again.
            start = lengths[slot] = min(lengths[slot], row.length - 1)
            tokens.append([row.token(place) for place in range(start, row.length)])
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

"""Rows in slots; and policies that decide without the donor (`entropy`, `random`, `early`, one model alone), step by step.

A finished row's slot takes the next request at once. Nothing is verified here: the model that writes a token first reads the
tokens that it has skipped, in the same pass. The same rows continue with the same model until one of them ends or needs the other
model. Choice, draw and next token stay on the device: a GPU computes one token while the host stores the one before.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.decoding.costs import PassCost
from lm_eval_takeover.decoding.rows import Decision, Row, blame, build_block, stack_windows, upload_next
from lm_eval_takeover.forward.caches import LONGEST, HostCopy, choose_device, pad_right, upload
from lm_eval_takeover.forward.forward_pass import ForwardPass, StatePass
from lm_eval_takeover.forward.reader import Drafted, Reader, take_reader
from lm_eval_takeover.method.gate import push
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import CountTokens, Generation, Sampling
from lm_eval_takeover.method.sampling import drawing
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
        self.policy, self.seed = policy, seed
        self.vocab, self.eos = pair.vocab_size, pair.eos_ids
        self.count_tokens, self.traced = count_tokens, waiting[0].generation.observed is not None
        self.donor = policy.writes(taken_over=True)
        self.sampling: Sampling = waiting[0].request.sampling
        self.waiting, self._entering = deque(waiting), deque[Row]()
        self.size = min(batch_size, len(waiting))  # slots
        longest = max(len(row.request.prompt) + row.request.max_new_tokens for row in waiting)
        self.readers = {
            role: take_reader(forward, self.size, self.vocab, LONGEST + longest) for role, forward in passes.items()
        }
        self.slots: list[Row] = []
        self.finished: list[int] = []  # slots whose text has ended in this step
        self.device = choose_device(next(iter(passes.values())).member.device)
        self._prefilled: dict[tuple[int, ...], tuple[int, dict[str, Reader]]] = {}  # by text: its row in these readers

    def run(self, advance: Callable[[], None]) -> Iterator[tuple[int, Generation]]:
        """Every request to its end: `(its index, generation)` as it finishes, also if another one's pass fails."""
        while self.slots or self.waiting:
            try:
                self.admit()
                advance()  # emits tokens of the rows in all slots
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
        self._entering = deque(self.waiting.popleft() for _ in range(free))
        while self._entering:
            texts = [text for text in self._next_texts() if text not in self._prefilled]
            if texts:
                read = {role: reader.prefill(texts) for role, reader in self.readers.items()}
                self._prefilled |= {text: (place, read) for place, text in enumerate(texts)}
            self._place_prefilled()

    def _next_texts(self) -> list[tuple[int, ...]]:
        """The first texts of the entering rows, which are prefilled together: one, and more up to a number of tokens."""
        texts: dict[tuple[int, ...], None] = {}
        for row in self._entering:
            text = row.text[:-1]  # a row's first pass reads the last token
            if texts and (len(texts) + 1) * max(len(text), *map(len, texts)) > _PREFILL_AT_ONCE:
                break
            texts[text] = None
        return list(texts)

    def _place_prefilled(self) -> None:
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
        for role in self.readers:
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

    def draw_first(self, role: str, groups: Sequence[Sequence[int]], last: Tensor, at: Tensor) -> Drafted:
        """Read the skipped tokens of groups of slots, one pass for each group, and draw the next token of each row.

        last, at: last tokens `[rows, 1]` and words `[rows]`, group after group. Under `drawing`. Lengths end before the last
        token: drawn ones are at 1, 2, ….
        """
        reader, parts = self.readers[role], []
        if len(groups) == 1 and all(reader.lengths[slot] + 1 == self.slots[slot].length for slot in groups[0]):
            return reader.draft(groups[0], last, 0, at, self.sampling)
        for group in groups:
            unread = [self.slots[slot].tokens_from(reader.lengths[slot]) for slot in group]
            logits = reader.read_to_last(group, pad_right(unread, self.device), [len(tokens) for tokens in unread])
            parts.append(logits.clone() if len(groups) > 1 else logits)  # the next pass overwrites what a pass returns
            for slot in group:  # slots compute along in the next group's pass: they write behind what they have read
                reader.lengths[slot] = self.slots[slot].length
        for slot in chain.from_iterable(groups):
            reader.lengths[slot] = self.slots[slot].length - 1
        return reader.draw(torch.cat(parts) if len(parts) > 1 else parts[0], at, self.sampling)


_DUE_SHARE = 1 / 8  # of the rows: so many takeovers make a pass of the donor
_UNREAD_AT_ONCE = 4096  # tokens, padding included, of a pass of several rows


class Step(NamedTuple):
    """One token of each row. copy: on its way to the host, tokens and masses `[rows]`; takeovers and scores `[rows]` if the
    host's distribution decides; the numbers of a trace.

    windows `[rows, window]` after the token, if there is a score; the host's logits, for a trace.
    """

    copy: HostCopy
    windows: Tensor | None = None
    logits: Tensor | None = None


class Stepwise:
    """Each row's next tokens by the model that writes them: the host first, then the donor where it takes over."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.policy = pool, pool.policy

    @cached_property
    def _asks_host(self) -> bool:
        """Whether the host's distribution decides. If not, takeovers are known beforehand."""
        return self.policy.scorer is not None or self.policy.needs_token

    def advance(self) -> None:
        ahead = self._look_ahead()
        due = sum(taken for taken, _ in ahead)
        # A pass has a cost of its own, whatever its rows: takeovers wait for others.
        donor_writes = due >= _DUE_SHARE * len(ahead)
        writing = [slot for slot, (taken, _) in enumerate(ahead) if taken is donor_writes]
        groups = self._group(writing) if donor_writes else [writing]
        self._write(groups, donor_writes, min(count for taken, count in ahead if taken is donor_writes))

    def _look_ahead(self) -> list[tuple[bool, int]]:
        """For each row: whether the donor writes its next token, and for how many tokens, at most, that holds."""
        rows = self.pool.slots
        if self._asks_host:
            return [(row.due is not None, 1 if row.due is not None else min(row.remaining, LONGEST)) for row in rows]
        count = 1 if self.policy.reads_text else min(LONGEST, max(row.remaining for row in rows))
        unscored = torch.full((len(rows), count), math.nan)
        block = build_block(self.policy, rows, unscored, None, torch.zeros(len(rows), self.policy.window))
        ahead = []
        for row, taken in zip(rows, self.policy.decide(block).tolist(), strict=True):
            same = next((place for place, takeover in enumerate(taken) if takeover is not taken[0]), count)
            ahead.append((taken[0], min(same, row.remaining)))
        return ahead

    def _write(self, groups: Sequence[Sequence[int]], taken: bool, count: int) -> None:
        """Write up to `count` tokens of these rows, all takeovers or none. Stops when a row ends or becomes the donor's.

        groups: slots that read their skipped tokens in one pass.
        """
        slots, role = [slot for group in groups for slot in group], self.policy.writes(taken)
        pool, reader, judged = self.pool, self.pool.readers[role], self._asks_host and not taken
        depth = 0 if self.policy.reads_text else reader.pipeline_depth
        rows = pool.rows(slots)
        last, words = upload_next(rows, count, pool.device)
        windows = stack_windows(rows) if judged else None
        words = self.policy.choose_words(words, torch.ones_like(words, dtype=torch.bool)) if taken else words
        standing, pending = set(slots), deque[Step]()
        ids = torch.empty(0)
        with drawing():
            for number in range(count):
                if number:
                    drafted = reader.draft(slots, ids, number, words[:, number], pool.sampling)
                else:
                    drafted = pool.draw_first(role, groups, last[:, :1], words[:, 0])
                ids = drafted.tokens[:, None]
                step = self._judge(role, slots, drafted, windows, len(pending))
                windows = step.windows
                pending.append(step)
                if len(pending) > depth:
                    self._enter(role, slots, taken, pending.popleft(), standing)
                    if len(standing) < len(slots):
                        break
            for step in pending:
                self._enter(role, slots, taken, step, standing)
        for slot, row in zip(slots, rows, strict=True):
            reader.lengths[slot] = row.length - 1 + (judged and row.due is not None)

    def _judge(self, role: str, slots: Sequence[int], drafted: Drafted, windows: Tensor | None, ahead: int) -> Step:
        """The policy's decisions on tokens `ahead` of the entered ones. windows `[rows, window]`: scores before."""
        pool, device = self.pool, self.pool.device
        columns = [drafted.tokens.to(device), drafted.masses.to(device)]
        if windows is None and not pool.traced:
            return Step(HostCopy(*columns))
        logits, host_logits = drafted.logits.to(device), None
        if windows is not None:
            scores = self.policy.scores(logits, None, columns[0])
            block = build_block(self.policy, pool.rows(slots), scores[:, None], columns[0][:, None], windows, ahead)
            taken = self.policy.decide(block)[:, 0]
            windows = push(windows, scores) if self.policy.scorer is not None else windows
            host_logits = logits.clone() if pool.traced else None  # the next pass overwrites them
            columns += [taken, scores]
        if pool.traced:
            columns.append(self._observe(role, slots, columns[0], logits))
        return Step(HostCopy(*columns), windows, host_logits)

    def _observe(self, role: str, slots: Sequence[int], tokens: Tensor, logits: Tensor) -> Tensor:
        """The trace `[rows, OBSERVED]` of these tokens, from the models that were asked."""
        host: Tensor | None = logits
        donor: Tensor | None = None
        drawn: Tensor | None = tokens
        if role != self.policy.host:
            hosts = [row.due.host for row in self.pool.rows(slots) if row.due is not None and row.due.host is not None]
            host = torch.stack([row for row, _ in hosts]) if hosts else None
            drawn = upload(torch.tensor([token for _, token in hosts]), self.pool.device) if hosts else None
            donor = logits
        return self.policy.observe(tokens, host, donor, drawn)

    def _enter(self, role: str, slots: Sequence[int], taken: bool, step: Step, standing: set[int]) -> None:
        """Append the tokens of standing rows. A row stops standing if it ends, if the donor is to write its token, or if another
        token was forced."""
        pool, fetched = self.pool, step.copy.fetch()
        observed = fetched.pop().numpy() if pool.traced else None
        tokens, masses, *judged = (column.tolist() for column in fetched)
        for place, slot in enumerate(slots):
            if slot not in standing:
                continue
            row = pool.slots[slot]
            if not math.isfinite(masses[place]):
                raise blame(pool.readers[role].forward.member.refuse_logits(row.name), [row.index])
            row.generation.count_passes(role, 1)
            score = math.nan
            if judged:
                score = judged[1][place]
                if math.isnan(score):
                    self.policy.refuse_nan(torch.tensor(score))
                assert step.windows is not None
                if judged[0][place]:
                    host = None if step.logits is None else (step.logits[place], tokens[place])
                    row.due = Decision(score, step.windows[place], host)
                    standing.remove(slot)
                    continue
                row.window = step.windows[place]
            elif row.due is not None:
                score, row.window, row.due = row.due.score, row.due.window, None
            numbers = None if observed is None else observed[place : place + 1]
            ended = pool.emit(slot, tokens[place : place + 1], [taken], [score], numbers)[1]
            if ended or (row.thinking is not None and row.last != tokens[place]):
                standing.remove(slot)

    def _group(self, due: Sequence[int]) -> list[list[int]]:
        """Slots of the donor's next tokens by pass, least to read first. A pass grows until padding costs more than another."""
        pool, groups = self.pool, list[list[int]]()
        lengths = pool.readers[pool.donor].lengths
        longest = 0
        for unread, slot in sorted((pool.slots[slot].length - lengths[slot], slot) for slot in due):
            rows = len(groups[-1]) if groups else 0
            costs_more = rows * (unread - longest) * self._cost.per_token > self._cost.fixed
            if not groups or costs_more or (rows + 1) * unread > _UNREAD_AT_ONCE:
                groups.append([])
            groups[-1].append(slot)
            longest = unread
        return [sorted(group) for group in groups]

    @cached_property
    def _cost(self) -> PassCost:
        return PassCost.of(self.pool.readers[self.pool.donor].forward)

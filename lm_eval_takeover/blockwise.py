"""Blockwise verification: the text of the lockstep loop at a fraction of the guide's passes.

The host drafts some tokens; one pass of the donor reads them all; the gate is evaluated from left to right; the first position
that fires takes the donor's token and drops the rest of the draft. Every position is decided from the same distributions and
the same random numbers as in `lockstep`, so the tokens are the same.

Where the takeovers are known without the donor (`entropy`, `random`, `early`, one model alone), nothing is drafted: each token
asks the model that writes it, which first reads, in the same pass, what it has skipped.

Rows stand in slots. When one finishes, its slot takes the next request at once, so a straggler holds up nobody.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, special

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.gate import Gate, fires, fires_ahead
from lm_eval_takeover.generation import Generation, Request, StopStrings
from lm_eval_takeover.pace import Pace
from lm_eval_takeover.pair import Pair, right_padded
from lm_eval_takeover.policy import Policy
from lm_eval_takeover.reader import ForwardPass, Reader, forward_pass
from lm_eval_takeover.sampling import Sampling, draw, request_digest, uniforms

logger = logging.getLogger(__name__)


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
    def length(self) -> int:
        return len(self.request.prompt) + self.position


class Pool:
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
    ) -> None:
        self.policy, self.eos, self.seed = policy, eos, seed
        self.sampling: Sampling = waiting[0][1].sampling
        self.waiting = deque(
            Row(index, request, stops(request.until), request.early_tokens or policy.early_tokens or 0)
            for index, request in waiting
        )
        self.slots: list[Row] = []
        self.size = min(batch_size, len(waiting))
        self.readers = {role: Reader(one, self.size, vocab) for role, one in passes.items()}
        self.device = next(iter(self.readers.values())).device
        self.pace = Pace(block_size)
        self._prefilled: dict[tuple[int, ...], tuple[int, dict[str, Reader]]] = {}

    def run(self) -> Iterator[tuple[int, Generation]]:
        """Every request to its end: `(its index, generation)` as it finishes."""
        while self.slots or self.waiting:
            try:
                if self.waiting and len(self.slots) < self.size:
                    self.refill()
                finished = self.block() if self.policy.name == "disagreement" else self.step()
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                self.halve()
                continue
            for slot in finished:
                generation = self.slots[slot].generation
                for role in self.policy.roles:
                    # The first pass also reads the end of the prompt: prefill.
                    generation.count_passes(role, -1)
                yield self.slots[slot].index, generation
            self.release(finished)

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
                reader.take(read[role], place, len(self.slots))
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
        """After memory ran out: half as many slots, and every row reads its text again. Raises where one row is too many."""
        if self.size == 1:
            label = self.slots[0].request.label if self.slots else self.waiting[0].request.label
            raise ArgumentError(
                f"{label}: not enough memory for one sample; give a shorter max_length=… or a smaller dtype=…"
            )
        self.waiting.extendleft(reversed(self.slots))
        self.slots, self._prefilled, self.size = [], {}, self.size // 2
        self.readers = {role: Reader(reader.forward, self.size, reader.vocab) for role, reader in self.readers.items()}
        logger.warning("out of memory; going on with a batch size of %d", self.size)

    def release(self, finished: Sequence[int]) -> None:
        """Free these slots; the last rows move into their places."""
        for slot in sorted(finished, reverse=True):
            last = len(self.slots) - 1
            if slot != last:
                for reader in self.readers.values():
                    reader.move(last, slot)
                self.slots[slot] = self.slots[last]
            self.slots.pop()

    # What every policy does with tokens

    def numbers(self, slots: Sequence[int], count: int) -> Tensor:
        """The uniform numbers of the next `count` positions: `[rows, count]`; 0 behind the last position that there is."""
        found = np.zeros((len(slots), count))
        for place, slot in enumerate(slots):
            row = self.slots[slot]
            part = row.uniforms[row.position : row.position + count]
            found[place, : len(part)] = part
        return torch.from_numpy(found).to(self.device)

    def emit(
        self, slot: int, tokens: Sequence[int], taken: Sequence[bool], scores: Sequence[float]
    ) -> tuple[int, bool]:
        """Append tokens until one ends the text: `(how many were emitted, whether the text has ended)`."""
        row = self.slots[slot]
        generation = row.generation
        for count, (token, takeover, score) in enumerate(zip(tokens, taken, scores, strict=True), 1):
            generation.tokens.append(token)
            generation.taken_over.append(takeover)
            generation.scores.append(score)
            if row.remaining == 0 or token in self.eos or row.stop.found(generation.tokens):
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
        return right_padded(tokens, self.device), counts

    def ask(self, role: str, slots: Sequence[int]) -> Tensor:
        """The next-token logits `[rows, vocab]` of a model that first reads what it has skipped."""
        ids, counts = self.unread(role, slots)
        reader = self.readers[role]
        logits = reader.read_to_last(slots, ids, counts)
        reader.forward.member.check(logits, lambda i: self.name(slots[i]))
        for slot, count in zip(slots, counts, strict=True):
            reader.lengths[slot] += count
            self.slots[slot].generation.count_passes(role, 1)
        return logits.to(self.device)

    # Takeovers that are known without the donor

    def step(self) -> list[int]:
        """One token for every row; returns the slots whose text has ended."""
        policy, slots = self.policy, list(range(len(self.slots)))
        tokens = [0] * len(slots)
        scores = [float("nan")] * len(slots)
        taken = self._known_takeovers(slots)
        windows: Tensor | None = None
        if policy.name == "entropy":
            assert policy.host is not None and policy.gate is not None
            logits = self.ask(policy.host, slots)
            score = policy.scores(logits, None)
            recent = self._windows()
            position = torch.tensor([row.position for row in self.slots], device=self.device)
            taken = fires(policy.gate, score, recent, position).tolist()
            scores = score.tolist()
            windows = torch.cat([recent[:, 1:], score[:, None]], 1)
            hosted = [slot for slot in slots if not taken[slot]]
            self._draw(hosted, logits[hosted], tokens)
        else:
            hosted = [slot for slot in slots if not taken[slot]]
            if hosted:
                assert policy.host is not None
                self._draw(hosted, self.ask(policy.host, hosted), tokens)
        if donated := [slot for slot in slots if taken[slot]]:
            assert policy.donor is not None
            self._draw(donated, self.ask(policy.donor, donated), tokens)
        if windows is not None:  # now that no pass can fail any more
            for row, window in zip(self.slots, windows, strict=True):
                row.recent = window
        return [slot for slot in slots if self.emit(slot, [tokens[slot]], [taken[slot]], [scores[slot]])[1]]

    def _windows(self) -> Tensor:
        """The last scores of every row: `[rows, window]`."""
        return torch.stack([row.recent for row in self.slots if row.recent is not None])

    def _known_takeovers(self, slots: Sequence[int]) -> list[bool]:
        policy = self.policy
        match policy.name:
            case "random":
                assert policy.rate is not None
                return [bool(row.chances[row.position] < policy.rate) for row in self.slots]
            case "early":
                return [row.position < row.early for row in self.slots]
        return [policy.name == "guide"] * len(slots)

    def _draw(self, slots: Sequence[int], logits: Tensor, tokens: list[int]) -> None:
        if slots:
            drawn = draw(logits, self.numbers(slots, 1)[:, 0], self.sampling).tolist()
            for slot, token in zip(slots, drawn, strict=True):
                tokens[slot] = token

    # Takeovers that the donor's distribution decides

    def block(self) -> list[int]:
        """Draft, verify, emit up to the first takeover; returns the slots whose text has ended."""
        started = time.perf_counter()
        slots = list(range(len(self.slots)))
        drafts, host_logits, drafted, entropies = self._draft(slots)
        donor_logits = self._verify(slots, drafts)
        policy, longest = self.policy, drafts.shape[1]
        assert policy.gate is not None
        scores = policy.scores(host_logits, donor_logits)
        if not bool(scores.isfinite().all()):
            self._refuse_broken(host_logits, donor_logits, drafted)
        recent = self._windows()
        position = torch.tensor([row.position for row in self.slots], device=self.device)
        counts = torch.tensor(drafted, device=self.device)
        fire = fires_ahead(policy.gate, scores, recent, position)
        fire &= torch.arange(longest, device=self.device) < counts[:, None]
        first = torch.where(fire.any(1), fire.int().argmax(1), counts)  # the drafted length where nothing fires
        fired = [slot for slot, (at, count) in enumerate(zip(first.tolist(), drafted, strict=True)) if at < count]
        tokens = drafts.clone()
        if fired:
            at = first[fired]
            uniform = self.numbers(fired, longest).gather(1, at[:, None])[:, 0]
            tokens[torch.tensor(fired, device=self.device), at] = draw(donor_logits[fired, at], uniform, self.sampling)
        window = torch.cat([recent, scores], 1)
        ended: list[int] = []
        seen_entropies: list[float] = []
        seen_fires: list[bool] = []
        emitted = 0
        listed = zip(slots, first.tolist(), drafted, tokens.tolist(), scores.tolist(), strict=True)
        for slot, at, count, row_tokens, row_scores in listed:
            row, stands = self.slots[slot], min(at + 1, count)
            taken = [False] * at + [True] if at < count else [False] * count
            seen_entropies += entropies[slot][:stands]
            seen_fires += taken
            written, end = self.emit(slot, row_tokens[:stands], taken, row_scores[:stands])
            row.recent = window[slot, written : written + policy.gate.window]
            emitted += written
            for reader in self.readers.values():
                reader.lengths[slot] += written
            if end:
                ended.append(slot)
        self.pace.block_ended(seen_entropies, seen_fires, emitted, time.perf_counter() - started)
        return ended

    def _pending(self, slots: Sequence[int]) -> Tensor:
        """The last token of each row, which no model has read yet: `[rows, 1]`."""
        rows = [self.slots[slot] for slot in slots]
        return torch.tensor([[row.token(row.length - 1)] for row in rows], device=self.device)

    def _draft(self, slots: Sequence[int]) -> tuple[Tensor, Tensor, list[int], list[list[float]]]:
        """The host's tokens `[rows, k]`, its logits `[rows, k, vocab]`, how many of them each row has, and its entropies."""
        assert self.policy.host is not None
        reader = self.readers[self.policy.host]
        limits = [min(self.pace.limit, self.slots[slot].remaining) for slot in slots]
        uniform = self.numbers(slots, max(limits))
        ids = self._pending(slots)
        active, drafted, survival = list(slots), [0] * len(slots), [1.0] * len(slots)
        entropies: list[list[float]] = [[] for _ in slots]
        columns: list[Tensor] = []
        read: list[Tensor] = []
        for number in range(max(limits)):
            begun = time.perf_counter()
            logits = reader.read(active, ids, number)[:, 0].to(self.device)
            drawn = draw(logits, uniform[active, number], self.sampling)
            columns.append(_spread(drawn, active, len(slots)))
            read.append(_spread(logits, active, len(slots)))
            uncertain = special.entr(logits.softmax(-1)).sum(-1).tolist()
            for slot, token, one in zip(active, drawn.tolist(), uncertain, strict=True):
                drafted[slot] += 1
                entropies[slot].append(one)
                if self.pace.chooses:
                    survival[slot] *= 1 - self.pace.chance(one)
                if drafted[slot] == limits[slot] or token in self.eos:
                    survival[slot] = 0.0
                self.slots[slot].generation.count_passes(self.policy.host, 1)
            self.pace.host_took(len(active), time.perf_counter() - begun)
            standing = [slot for slot in active if survival[slot] > 0]
            if not standing:
                break
            if self.pace.chooses:
                if not self.pace.pays(sum(survival[slot] for slot in standing), len(standing)):
                    break
                # A row that has probably fired would only pay for its part of the pass.
                standing = [slot for slot in standing if survival[slot] > 0.1] or standing
            ids = columns[-1][:, None] if len(standing) == len(slots) else columns[-1][standing][:, None]
            active = standing
        return torch.stack(columns, 1), torch.stack(read, 1), drafted, entropies

    def _verify(self, slots: Sequence[int], drafts: Tensor) -> Tensor:
        """The donor's logits at every drafted position, `[rows, k, vocab]`, in one pass."""
        assert self.policy.donor is not None
        reader = self.readers[self.policy.donor]
        ids = torch.cat([self._pending(slots), drafts[:, :-1]], 1)
        begun = time.perf_counter()
        logits = reader.read(slots, ids)
        self.pace.donor_took(len(slots), ids.shape[1], time.perf_counter() - begun)
        for slot in slots:
            self.slots[slot].generation.count_passes(self.policy.donor, 1)
        return logits.to(self.device)

    def _refuse_broken(self, host_logits: Tensor, donor_logits: Tensor, drafted: Sequence[int]) -> None:
        """Raise for logits that are no distribution; an infinite score of sound ones is a spike like any other."""
        real = (
            torch.arange(host_logits.shape[1], device=self.device) < torch.tensor(drafted, device=self.device)[:, None]
        )
        for role, logits in ((self.policy.host, host_logits), (self.policy.donor, donor_logits)):
            assert role is not None
            self.readers[role].forward.member.check(logits, self.name, real)


@torch.inference_mode()
def generate(
    pair: Pair,
    policy: Policy,
    requests: Sequence[Request],
    *,
    seed: int = 0,
    batch_size: int = 1,
    block_size: int | None = None,
    as_pair: bool = False,
) -> Iterator[tuple[int, Generation]]:
    """As `lockstep.generate`: `(index into requests, generation)` as samples finish, the same tokens.

    `block_size` fixes the length of a draft; None lets it follow from costs and rates.
    """
    vocab, eos = pair.writing(policy.roles, as_pair)
    passes = {role: forward_pass(pair.member(role)) for role in policy.roles}

    def settings(item: tuple[int, Request]) -> tuple[float, float, int]:
        sampling = item[1].sampling
        return sampling.temperature, sampling.top_p, sampling.top_k

    # The samples of one prompt stand together; the longest prompts come first, so that buffers grow once.
    ordered = sorted(
        enumerate(requests), key=lambda item: (settings(item), -len(item[1].prompt), item[1].prompt, item[0])
    )
    for _, group in groupby(ordered, key=settings):
        yield from Pool(
            policy,
            passes,
            list(group),
            vocab=vocab,
            stops=cache(partial(StopStrings, pair.tokenizer)),
            eos=eos,
            seed=seed,
            batch_size=batch_size,
            block_size=block_size,
        ).run()


def _spread(values: Tensor, rows: Sequence[int], count: int) -> Tensor:
    """`[count, ...]` with these values in these rows and zeros elsewhere."""
    if len(rows) == count:
        return values
    return values.new_zeros(count, *values.shape[1:]).index_copy_(0, torch.tensor(rows, device=values.device), values)


_MEMORY = ("can't allocate memory", "out of memory", "ALLOC_FAILED")


def _out_of_memory(error: RuntimeError) -> bool:
    """On a GPU a class of its own, or a message of its libraries; on a CPU a message of the allocator."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _MEMORY)

"""Blockwise verification: the text of the lockstep loop at a fraction of the guide's passes.

The host drafts some tokens; one pass of the donor reads them all; then, from left to right, the policy says which token is
emitted at each position. While it is the drafted one the draft stands; the first other token ends it. Every position is
decided from the same distributions and the same random numbers as in `lockstep`, so the tokens are the same.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.decoding.failures import Failures
from lm_eval_takeover.decoding.pace import Foresight, Pace, PassCosts
from lm_eval_takeover.decoding.pool import Pool
from lm_eval_takeover.decoding.stepwise import Stepwise
from lm_eval_takeover.decoding.stop_strings import StopStrings
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.padding import pad_right
from lm_eval_takeover.forward.reader import Drafted
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.observations import observe
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.method.sampling import draw, quiet
from lm_eval_takeover.pair.pair import Pair

_LEAST = 0.05  # a row whose probability to stand is no more drafts no further
# Logits of a block that are scored together: 64 MiB and as much again for each log-softmax, or what stays in a core's cache.
_LOGITS_AT_ONCE, _ON_CPU = 2**24, 2**19


@dataclass(slots=True)
class Draft:
    """What the host wrote ahead: lists have an entry per row, in the order of `slots`.

    logits `[rows, longest, vocab]` and uniform `[rows, longest]`; of row `r` the first `len(tokens[r])` count.
    """

    slots: list[int]
    logits: Tensor
    uniform: NDArray[np.float64]
    by_worth: bool  # whether it ends by what it is worth, and not by its limits alone
    limits: list[int]
    tokens: list[list[int]]
    entropies: list[list[float]]
    survival: list[float]  # the probability that the row still stands; 0 for rows that grow no further

    @property
    def lengths(self) -> list[int]:
        """How many tokens each row has."""
        return [len(row) for row in self.tokens]


@dataclass(slots=True)
class Verdict:
    """What stands of one row of a draft: tokens, which of them the donor wrote, whether the last one ended the draft."""

    tokens: list[int]
    taken: list[bool]
    ended_draft: bool


class Blocks(Pool):
    """Takeovers that the donor's distribution decides: draft, verify, accept up to the first other token."""

    _logits: Tensor | None = None  # `[rows, longest, vocab]` of a draft, used again by the next

    @cached_property
    def pace(self) -> Pace:
        host, donor = self.passes[self.host], self.passes[self.donor]
        host_costs, donor_costs = (one.learned.setdefault("costs", PassCosts()) for one in (host, donor))
        foresight = host.learned.setdefault(("foresight", self.policy), Foresight())
        return Pace(host_costs, donor_costs, foresight, self.block_size)

    @property
    def _captures(self) -> int:
        """Graphs captured so far: a pass that captures takes its time."""
        return sum(reader.graph_captures for reader in self.readers.values())

    def _shrink(self) -> None:
        self._logits = None
        super()._shrink()

    def advance(self, slots: Sequence[int]) -> list[int]:
        started, captures = time.perf_counter(), self._captures
        with quiet():
            draft = self._draft(list(slots))
        begun = time.perf_counter()
        donor_logits = self._verify(draft)
        scores = self._score(draft, donor_logits)
        fire = self.policy.decide(self.block(slots, scores)).tolist()
        if steady := self._captures == captures:
            self.pace.donor.took(len(slots), max(draft.lengths), time.perf_counter() - begun)
        verdicts = self._accept(draft, fire, donor_logits)
        self._refuse_broken(draft, donor_logits, scores, verdicts)
        ended = self._emit(draft, donor_logits, scores, verdicts)
        entropies = [
            one for row, verdict in zip(draft.entropies, verdicts, strict=True) for one in row[: len(verdict.tokens)]
        ]
        voids = [void for one in verdicts for void in [False] * (len(one.tokens) - 1) + [one.ended_draft]]
        seconds = time.perf_counter() - started if steady else None
        self.pace.block_ended(len(slots), entropies, voids, len(entropies), seconds)
        return ended

    # Draft

    def _draft(self, slots: list[int]) -> Draft:
        """The host writes ahead, as far as it pays."""
        reader = self.readers[self.host]
        draft = self._empty_draft(slots)
        uniform = torch.from_numpy(draft.uniform).to(reader.device)
        ids = torch.tensor([[self.slots[slot].last] for slot in slots], device=self.device)
        rows, least = list(range(len(slots))), 0.0  # rows of the draft that go through the host's next pass
        pending: deque[tuple[int, list[int], Drafted]] = deque()  # tokens that the device has not handed over yet
        for number in range(max(draft.limits)):
            begun, captures = time.perf_counter(), reader.graph_captures
            everyone = len(rows) == len(slots)
            step = reader.draft(
                slots if everyone else [slots[row] for row in rows],
                ids,
                number,
                uniform.select(1, number) if everyone else uniform[rows, number],
                self.sampling,
            )
            if everyone:
                draft.logits.select(1, number).copy_(step.logits)
            else:
                draft.logits[rows, number] = step.logits
            ids = step.tokens.unsqueeze(1)
            pending.append((number, rows, step))
            if len(pending) <= reader.pipeline_depth:
                continue
            self._append_drafted(draft, *pending.popleft())
            if reader.graph_captures == captures:
                self.pace.host.took_one(len(rows), time.perf_counter() - begun)
            if number < 2:  # later on it is nearly the same
                least = self.pace.least_survival(len(slots), len(rows), number + 1)
            if sum(draft.survival) <= least:
                break
            if not reader.pipeline_depth and 4 * sum(map(bool, draft.survival)) <= len(rows):
                # So few that reading their cached keys and values out of the others costs less than those rows' arithmetic.
                rows = [row for row, survival in enumerate(draft.survival) if survival]
                ids = torch.tensor([draft.tokens[row][-1:] for row in rows], device=self.device)
                least = self.pace.least_survival(len(slots), len(rows), number + 1)
        for step_of in pending:
            self._append_drafted(draft, *step_of)
        return draft

    def _empty_draft(self, slots: list[int]) -> Draft:
        most = self.pace.limit(self.size if self.readers[self.host].pipeline_depth else len(slots), self.vocab)
        limits = [min(most, self.slots[slot].remaining) for slot in slots]
        longest = max(limits)
        if self._logits is None or self._logits.shape[0] < len(slots) or self._logits.shape[1] < longest:
            # Not filled: of each row only what was drafted is read.
            self._logits = torch.empty(len(slots), longest, self.vocab, device=self.device)
        return Draft(
            slots=slots,
            logits=self._logits[: len(slots)],
            uniform=self.uniforms(slots, longest),
            by_worth=self.pace.chooses(len(slots)),
            limits=limits,
            tokens=[[] for _ in slots],
            entropies=[[] for _ in slots],
            survival=[1.0] * len(slots),
        )

    def _append_drafted(self, draft: Draft, number: int, rows: list[int], step: Drafted) -> None:
        """Enter one drafted position, now that its token is known here."""
        tokens, sureness, entropies = step.fetch()
        for row, token, sure, entropy in zip(rows, tokens, sureness, entropies, strict=True):
            survival = draft.survival[row]
            if not survival:
                continue
            self.readers[self.host].record_draw(sure)
            if not sure:
                uniform = torch.from_numpy(draft.uniform[row, number, None]).to(self.device)
                token = int(draw(draft.logits[row, number][None], uniform, self.sampling))
            draft.tokens[row].append(token)
            draft.entropies[row].append(entropy)
            if draft.by_worth:
                survival *= 1 - self.pace.foresight.chance(entropy)
            # A token that was not sure when the next one was drafted ends the draft, as the text's end does.
            ends = len(draft.tokens[row]) == draft.limits[row] or token in self.eos or not sure
            draft.survival[row] = 0.0 if ends or survival <= _LEAST else survival

    # Verify

    def _verify(self, draft: Draft) -> Tensor:
        """The donor's logits at every drafted position, `[rows, k, vocab]`, in one pass."""
        read = zip(draft.slots, draft.tokens, strict=True)
        ids = pad_right([[self.slots[slot].last, *tokens[:-1]] for slot, tokens in read], self.device)
        return self.readers[self.donor].read(draft.slots, ids).to(self.device)

    def _score(self, draft: Draft, donor_logits: Tensor) -> Tensor:
        """`s_t` at every drafted position `[rows, k]`; behind a row's own length, anything."""
        parts = (self.policy.scores(draft.logits[:, part], donor_logits[:, part]) for part in self._parts(donor_logits))
        return torch.cat(list(parts), 1)

    def _parts(self, logits: Tensor) -> Iterator[slice]:
        """Columns of logits `[rows, k, vocab]` that are looked at together."""
        most = _ON_CPU if logits.device.type == "cpu" else _LOGITS_AT_ONCE
        at_once = max(1, most // logits[:, 0].numel())
        longest = logits.shape[1]
        return (slice(start, min(start + at_once, longest)) for start in range(0, longest, at_once))

    def _accept(self, draft: Draft, fire: Sequence[Sequence[bool]], donor_logits: Tensor) -> list[Verdict]:
        """What stands of each row where the gate fires as `fire` `[rows][k]` says: up to the first other token, included."""
        places = [
            (row, place)
            for row, (fires, length) in enumerate(zip(fire, draft.lengths, strict=True))
            for place in range(length)
            if fires[place]
        ]
        donated: dict[tuple[int, int], int] = {}
        if places:
            rows, at = map(list, zip(*places, strict=True))
            uniform = torch.from_numpy(draft.uniform[rows, at]).to(self.device)
            donated = dict(zip(places, draw(donor_logits[rows, at], uniform, self.sampling).tolist(), strict=True))
        verdicts = []
        for row, drafted in enumerate(draft.tokens):
            emitted = [donated.get((row, place), token) for place, token in enumerate(drafted)]
            other = next((place for place, token in enumerate(drafted) if emitted[place] != token), None)
            count = len(drafted) if other is None else other + 1
            verdicts.append(Verdict(emitted[:count], list(fire[row][:count]), other is not None))
        return verdicts

    def _refuse_broken(self, draft: Draft, donor_logits: Tensor, scores: Tensor, verdicts: Sequence[Verdict]) -> None:
        """Raise where a position that stands has a score that is no number, for the model or the plug-in that is to blame.

        An infinite score of sound logits is a spike like any other.
        """
        counts = torch.tensor([len(verdict.tokens) for verdict in verdicts], device=self.device)
        stands = torch.arange(scores.shape[1], device=self.device) < counts[:, None]
        if bool(scores[stands].isfinite().all()):
            return
        for role, logits in ((self.host, draft.logits[:, : scores.shape[1]]), (self.donor, donor_logits)):
            self.passes[role].member.check_logits(logits, lambda row: self.slots[draft.slots[row]].name, stands)
        self.policy.refuse_nan(scores[stands])

    # Emit

    def _emit(self, draft: Draft, donor_logits: Tensor, scores: Tensor, verdicts: Sequence[Verdict]) -> list[int]:
        """Append what stands; returns the slots whose text has ended."""
        window, size = torch.cat([self.windows(draft.slots), scores], 1), self.policy.window
        observed = self._observe(draft, donor_logits, verdicts) if self.traced else [None] * len(draft.slots)
        ended = []
        for row, (slot, verdict, values, seen) in enumerate(
            zip(draft.slots, verdicts, scores.tolist(), observed, strict=True)
        ):
            written, end = self.emit(slot, verdict.tokens, verdict.taken, values[: len(verdict.tokens)], seen)
            self.slots[slot].window = window[row, written : written + size]
            self.slots[slot].generation.count_passes(self.host, len(draft.tokens[row]))
            self.slots[slot].generation.count_passes(self.donor, 1)
            for reader in self.readers.values():
                reader.lengths[slot] += written
            if end:
                ended.append(slot)
        return ended

    def _observe(
        self, draft: Draft, donor_logits: Tensor, verdicts: Sequence[Verdict]
    ) -> Iterable[NDArray[np.float32]]:
        """For each row `[k, OBSERVED]`, what both models thought of its tokens; behind its last one, anything."""
        emitted = [
            [*verdict.tokens, *drafted[len(verdict.tokens) :]]
            for verdict, drafted in zip(verdicts, draft.tokens, strict=True)
        ]
        tokens = pad_right(emitted, self.device)
        parts = []
        for part in self._parts(donor_logits):
            base = donor_logits[:, part] if self.donor == "base" else None
            parts.append(observe(tokens[:, part], draft.logits[:, part], donor_logits[:, part], base_logits=base))
        observed = torch.cat(parts, 1).cpu().numpy()
        if self.host == "base":  # drafting asked for its entropies already
            for row, entropies in zip(observed, draft.entropies, strict=True):
                row[: len(entropies), 0] = entropies
        return observed


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
    traced: bool = False,
    failures: Failures | None = None,
) -> Iterator[tuple[int, Generation]]:
    """As `lockstep.generate`: `(index into requests, generation)` as samples finish, the same tokens.

    `block_size` fixes the length of a draft; None lets it follow from costs and rates. Requests that a model cannot answer go
    into `failures`; without one, the first of them is raised once all others are finished.
    """
    vocab, eos = pair.vocab_and_eos(policy.roles, as_pair)
    passes = {role: prepare_pass(pair.member(role)) for role in policy.roles}

    def settings(item: tuple[int, Request]) -> tuple[float, float, int]:
        sampling = item[1].sampling
        return sampling.temperature, sampling.top_p, sampling.top_k

    # The samples of one prompt stand together; the longest prompts come first, so that buffers grow once.
    ordered = sorted(
        enumerate(requests), key=lambda item: (settings(item), -len(item[1].prompt), item[1].prompt, item[0])
    )
    kind = Blocks if policy.drafts else Stepwise
    failed = Failures(len(requests)) if failures is None else failures
    for _, group in groupby(ordered, key=settings):
        yield from kind(
            policy,
            passes,
            list(group),
            vocab=vocab,
            stops=cache(partial(StopStrings, pair.tokenizer)),
            eos=eos,
            seed=seed,
            batch_size=batch_size,
            block_size=block_size,
            failures=failed,
            traced=traced,
        ).run()
    if failures is None:
        failed.check()

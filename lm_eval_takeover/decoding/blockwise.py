"""Blockwise verification: the text of the lockstep loop at a fraction of the guide's passes.

The host drafts some tokens; one pass of the donor reads them all; the gate is evaluated from left to right; the first position
that fires takes the donor's token and drops the rest of the draft. Every position is decided from the same distributions and
the same random numbers as in `lockstep`, so the tokens are the same. Where block lengths are free, a takeover that writes just
the token that was drafted drops nothing: the text that both models have read is the right one.

Where the takeovers are known without the donor (`entropy`, `random`, `early`, one model alone), nothing is drafted: each token
asks the model that writes it, which first reads, in the same pass, what it has skipped.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.decoding.failures import Failures
from lm_eval_takeover.decoding.pace import Foresight, Pace, PassCosts
from lm_eval_takeover.decoding.pool import Due, Pool
from lm_eval_takeover.decoding.stop_strings import StopStrings
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.padding import pad_right
from lm_eval_takeover.forward.reader import Drafted
from lm_eval_takeover.method.gate import fires, fires_ahead, push
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.observations import OBSERVED, observe
from lm_eval_takeover.method.policies import Policy
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.method.sampling import draw, quiet
from lm_eval_takeover.pair.pair import Pair

_LEAST = 0.05  # a row whose probability to stand is no more drafts no further
_UNREAD_AT_ONCE = 4096  # tokens, padding included, that a donor catches up on in one pass of several rows
# Logits of a block that are scored together: 64 MiB and as much again for each log-softmax, or what stays in a core's cache.
_LOGITS_AT_ONCE, _ON_CPU = 2**24, 2**19


class Steps(Pool):
    """Takeovers that are known without the donor: one token at a time, from the model that writes it.

    A row whose token is the guide's waits until half of the rows do, or for a while, so that one pass serves several.
    """

    _idle = 0  # tokens that waiting rows might have written since the donor was asked

    def advance(self) -> list[int]:
        policy, host, donor = self.policy, self.policy.writes(taken_over=False), self.policy.writes(taken_over=True)
        free = [slot for slot, row in enumerate(self.slots) if row.due is None]
        notes = {slot: Due(float("nan"), self.slots[slot].recent) for slot in free}
        asked, logits = free, None
        if policy.name == "entropy" and free:
            assert policy.gate is not None
            logits = self.ask(host, asked)
            score, recent = policy.scores(logits, None), self.windows(free)
            taken = fires(policy.gate, score, recent, self.positions(free)).tolist()
            for slot, one, window in zip(free, score.tolist(), push(recent, score), strict=True):
                notes[slot] = Due(one, window)
        else:
            taken = self._known_takeovers(free)
        hosted = [slot for slot, takeover in zip(free, taken, strict=True) if not takeover]
        if logits is None and hosted:
            asked, logits = hosted, self.ask(host, hosted)
        stopped = [(place, slot) for place, slot in enumerate(free) if taken[place]]
        if self.traced and logits is not None and policy.name == "entropy":
            for place, slot in stopped:
                notes[slot].logits = logits[place].clone()
        for _, slot in stopped:  # now that their notes are complete
            self.slots[slot].due = notes[slot]
        due = {slot: row.due for slot, row in enumerate(self.slots) if row.due is not None}
        donated = self._served(list(due))
        donor_logits = self.ask(donor, donated) if donated else None
        if logits is not None and len(hosted) < len(asked):
            logits = logits[[place for place, slot in enumerate(asked) if slot not in due]]
        tokens = self._drawn(hosted, logits) | self._drawn(donated, donor_logits)
        observed = np.full((len(self.slots), len(OBSERVED)), np.nan, dtype=np.float32) if self.traced else None
        if observed is not None:
            self._observe(hosted, host, logits, tokens, observed)
            waited = [one for slot in donated if (one := due[slot].logits) is not None]
            self._observe(donated, host, torch.stack(waited) if waited else None, tokens, observed)
            self._observe(donated, donor, donor_logits, tokens, observed)
        ended = []
        for slot, token in tokens.items():  # now that nothing can fail any more
            row, takeover = self.slots[slot], slot in due
            note = due[slot] if takeover else notes[slot]
            row.recent, row.due = note.window, None
            seen = None if observed is None else observed[slot, None]
            if self.emit(slot, [token], [takeover], [note.score], seen)[1]:
                ended.append(slot)
        return ended

    def _observe(
        self,
        slots: Sequence[int],
        role: str,
        logits: Tensor | None,
        tokens: Mapping[int, int],
        observed: NDArray[np.float32],
    ) -> None:
        """Enter what one model, `logits` `[slots, vocab]`, thought of the tokens of these slots."""
        if logits is None or not slots:
            return
        chosen = torch.tensor([tokens[slot] for slot in slots], device=logits.device)
        host, base = role == self.policy.host, logits if role == "base" else None
        seen = observe(chosen, logits if host else None, None if host else logits, base_logits=base).cpu().numpy()
        observed[slots] = np.where(np.isnan(seen), observed[slots], seen)

    def _served(self, due: Sequence[int]) -> list[int]:
        """For which of these slots, whose tokens are the donor's, it is asked now.

        For all of them, once half of the rows wait, or their waiting has cost about two passes of the host; for fewer, the
        shortest first, where what they have not read is more than a pass should hold.
        """
        self._idle += len(due)
        rows = len(self.slots)
        if self.policy.host == "base" and 2 * len(due) < rows and self._idle < 2 * rows:
            return []
        self._idle = 0
        lengths = self.readers[self.policy.writes(taken_over=True)].lengths if due else []
        served: list[int] = []
        for unread, slot in sorted((self.slots[slot].length - lengths[slot], slot) for slot in due):
            if served and (len(served) + 1) * unread > _UNREAD_AT_ONCE:
                break
            served.append(slot)
        return sorted(served)

    def _known_takeovers(self, slots: Sequence[int]) -> list[bool]:
        policy, rows = self.policy, [self.slots[slot] for slot in slots]
        match policy.name:
            case "random":
                assert policy.rate is not None
                return [bool(row.chances[row.position] < policy.rate) for row in rows]
            case "early":
                return [row.position < row.early for row in rows]
        return [policy.name == "guide"] * len(slots)

    def _drawn(self, slots: Sequence[int], logits: Tensor | None) -> dict[int, int]:
        """The next token of each of these slots, from logits `[slots, vocab]`."""
        if logits is None or not slots:
            return {}
        uniform = torch.from_numpy(self.numbers(slots, 1)[:, 0]).to(self.device)
        return dict(zip(slots, draw(logits, uniform, self.sampling).tolist(), strict=True))


@dataclass(slots=True)
class Draft:
    """What the host wrote ahead, and how far it stands: lists have an entry per row.

    logits `[rows, longest, vocab]` and uniform `[rows, longest]`; of row `r` the first `len(tokens[r])` count.
    """

    logits: Tensor
    uniform: NDArray[np.float64]
    by_worth: bool  # whether it ends by what it is worth, and not by its limits alone
    limits: list[int]
    tokens: list[list[int]]
    entropies: list[list[float]]
    survival: list[float]  # the probability that nothing is void yet; 0 for rows that grow no further

    @property
    def drafted(self) -> list[int]:
        """How many tokens each row has."""
        return [len(row) for row in self.tokens]


class Blocks(Pool):
    """Takeovers that the donor's distribution decides: draft, verify, emit up to the first one."""

    _logits: Tensor | None = None  # `[rows, longest, vocab]` of a draft, used again by the next

    @property
    def host(self) -> str:
        return self.policy.writes(taken_over=False)

    @property
    def donor(self) -> str:
        return self.policy.writes(taken_over=True)

    @cached_property
    def pace(self) -> Pace:
        host, donor = self.readers[self.host].forward, self.readers[self.donor].forward
        key = ("foresight", self.policy, self.block_size is None)  # fixed blocks are voided by every takeover
        host_costs, donor_costs = (forward.learned.setdefault("costs", PassCosts()) for forward in (host, donor))
        return Pace(host_costs, donor_costs, host.learned.setdefault(key, Foresight()), self.block_size)

    @property
    def _captures(self) -> int:
        """Graphs captured so far: a pass that captures takes its time."""
        return sum(reader.graph_captures for reader in self.readers.values())

    def halve(self) -> None:
        self._logits = None
        super().halve()

    def advance(self) -> list[int]:
        started, captures, gate = time.perf_counter(), self._captures, self.policy.gate
        assert gate is not None
        slots = list(range(len(self.slots)))
        with quiet():
            draft = self._draft(slots)
        drafted = draft.drafted
        longest = max(drafted)
        host_logits = draft.logits[:, :longest]
        begun = time.perf_counter()
        donor_logits = self._verify(slots, draft)
        most = _ON_CPU if self.device.type == "cpu" else _LOGITS_AT_ONCE
        at_once = max(1, most // donor_logits[:, 0].numel())
        parts = (slice(start, start + at_once) for start in range(0, longest, at_once))
        scores = torch.cat([self.policy.scores(host_logits[:, part], donor_logits[:, part]) for part in parts], 1)
        counts = torch.tensor(drafted, device=self.device)
        places = torch.arange(longest, device=self.device)
        recent = self.windows(slots)
        fire = (fires_ahead(gate, scores, recent, self.positions(slots)) & (places < counts[:, None])).tolist()
        steady = self._captures == captures
        if steady:
            self.pace.donor.took(len(slots), longest, time.perf_counter() - begun)
        taken, voided = self._take_over(draft, fire, donor_logits)
        stand = torch.tensor(list(map(len, taken)), device=self.device)
        judged = places < stand[:, None]  # behind them lies what nobody will read
        if not bool(scores[judged].isfinite().all()):
            self._refuse_broken(host_logits, donor_logits, judged)
        observed = self._observed(draft, host_logits, donor_logits, at_once) if self.traced else [None] * len(slots)
        window = torch.cat([recent, scores], 1)
        ended: list[int] = []
        entropies: list[float] = []
        voids: list[bool] = []
        emitted = 0
        for slot, tokens, takeovers, row_scores, seen in zip(
            slots, draft.tokens, taken, scores.tolist(), observed, strict=True
        ):
            count = len(takeovers)
            entropies += draft.entropies[slot][:count]
            voids += [False] * (count - 1) + [voided[slot]]
            written, end = self.emit(slot, tokens[:count], takeovers, row_scores[:count], seen)
            self.slots[slot].recent = window[slot, written : written + gate.window]
            emitted += written
            for reader in self.readers.values():
                reader.lengths[slot] += written
            if end:
                ended.append(slot)
        seconds = time.perf_counter() - started if steady else None
        self.pace.block_ended(len(slots), entropies, voids, emitted, seconds)
        return ended

    def _take_over(
        self, draft: Draft, fire: Sequence[Sequence[bool]], donor_logits: Tensor
    ) -> tuple[list[list[bool]], list[bool]]:
        """The donor writes into the draft where the gate fires `[rows][k]`, up to the token that voids the rest of it.

        For each row: which of the tokens that stand were taken over, and whether the last of them voided the rest.
        """
        taken, voided = [[False] * count for count in draft.drafted], [False] * len(fire)
        due = [[place for place, fires in enumerate(row) if fires] for row in fire]
        rows, number = [row for row, places in enumerate(due) if places], 0
        while rows:
            at = [due[row][number] for row in rows]
            uniform = torch.from_numpy(draft.uniform[rows, at]).to(self.device)
            donated = draw(donor_logits[rows, at], uniform, self.sampling).tolist()
            number += 1
            further = []
            for row, place, token in zip(rows, at, donated, strict=True):
                taken[row][place] = True
                if token == draft.tokens[row][place] and self.block_size is None:
                    if number < len(due[row]):
                        further.append(row)
                else:
                    draft.tokens[row][place] = token
                    del taken[row][place + 1 :]
                    voided[row] = True
            rows = further
        return taken, voided

    def _observed(
        self, draft: Draft, host_logits: Tensor, donor_logits: Tensor, at_once: int
    ) -> Iterable[NDArray[np.float32]]:
        """For each row `[longest, 4]`, what both models thought of its tokens; behind its last one, anything."""
        tokens = pad_right(draft.tokens, self.device)
        found = []
        for start in range(0, tokens.shape[1], at_once):
            part = slice(start, start + at_once)
            base = donor_logits[:, part] if self.donor == "base" else None
            found.append(observe(tokens[:, part], host_logits[:, part], donor_logits[:, part], base_logits=base))
        observed = torch.cat(found, 1).cpu().numpy()
        if self.host == "base":  # drafting asked for its entropies already
            for row, entropies in zip(observed, draft.entropies, strict=True):
                row[: len(entropies), 0] = entropies
        return observed

    def _draft(self, slots: list[int]) -> Draft:
        """The host writes ahead, as far as it pays."""
        reader, vocab = self.readers[self.host], self.readers[self.host].vocab
        most = self.pace.limit(self.size if reader.pipeline_depth else len(slots), vocab)
        limits = [min(most, self.slots[slot].remaining) for slot in slots]
        longest = max(limits)
        if self._logits is None or self._logits.shape[0] < len(slots) or self._logits.shape[1] < longest:
            # Not filled, since few drafts are as long as they may be; what nothing has written there, nobody reads.
            self._logits = torch.empty(len(slots), longest, vocab, device=self.device)
        draft = Draft(
            logits=self._logits[: len(slots)],
            uniform=self.numbers(slots, longest),
            by_worth=self.pace.chooses(len(slots)),
            limits=limits,
            tokens=[[] for _ in slots],
            entropies=[[] for _ in slots],
            survival=[1.0] * len(slots),
        )
        uniform = torch.from_numpy(draft.uniform).to(reader.device)
        ids = torch.tensor([[row.last] for row in self.slots], device=self.device)
        computed, least = slots, 0.0
        notes: deque[tuple[int, list[int], Drafted]] = deque()
        for number in range(longest):
            begun, captures = time.perf_counter(), reader.graph_captures
            if computed is slots:
                step = reader.draft(slots, ids, number, uniform.select(1, number), self.sampling)
                draft.logits.select(1, number).copy_(step.logits)
            else:
                step = reader.draft(computed, ids, number, uniform[computed, number], self.sampling)
                draft.logits[computed, number] = step.logits
            ids = step.tokens.unsqueeze(1)
            notes.append((number, computed, step))
            if len(notes) <= reader.pipeline_depth:
                continue
            self._note(draft, *notes.popleft())
            if reader.graph_captures == captures:
                self.pace.host.took_one(len(computed), time.perf_counter() - begun)
            if number < 2:  # later on it is nearly the same
                least = self.pace.least_survival(len(slots), len(computed), number + 1)
            if sum(draft.survival) <= least:
                break
            if not reader.pipeline_depth and 4 * sum(map(bool, draft.survival)) <= len(computed):
                # So few that reading their cached keys and values out of the others costs less than those rows' arithmetic.
                computed = [row for row, survival in enumerate(draft.survival) if survival]
                ids = torch.tensor([draft.tokens[row][-1:] for row in computed], device=self.device)
                least = self.pace.least_survival(len(slots), len(computed), number + 1)
        for note in notes:
            self._note(draft, *note)
        for slot, tokens in zip(slots, draft.tokens, strict=True):
            self.slots[slot].generation.count_passes(self.host, len(tokens))
        return draft

    def _note(self, draft: Draft, number: int, computed: list[int], step: Drafted) -> None:
        """Enter one drafted position, now that its token is known here."""
        tokens, sureness, entropies = step.fetch()
        for row, token, sure, entropy in zip(computed, tokens, sureness, entropies, strict=True):
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

    def _verify(self, slots: Sequence[int], draft: Draft) -> Tensor:
        """The donor's logits at every drafted position, `[rows, k, vocab]`, in one pass."""
        read = zip(self.slots, draft.tokens, strict=True)
        ids = pad_right([[row.last, *tokens[:-1]] for row, tokens in read], self.device)
        logits = self.readers[self.donor].read(slots, ids)
        for slot in slots:
            self.slots[slot].generation.count_passes(self.donor, 1)
        return logits.to(self.device)

    def _refuse_broken(self, host_logits: Tensor, donor_logits: Tensor, judged: Tensor) -> None:
        """Raise for logits that are no distribution; an infinite score of sound ones is a spike like any other."""
        for role, logits in ((self.host, host_logits), (self.donor, donor_logits)):
            self.readers[role].forward.member.check_logits(logits, self.name, judged)


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
    kind = Blocks if policy.name == "disagreement" else Steps
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

"""Blockwise verification: lockstep's text with a fraction of the guide's passes.

The host drafts some tokens, and one pass of the donor reads them all. From left to right, the policy decides which token is
emitted. The first token that differs from the draft ends it. Every position has the same distributions and random numbers as in
`lockstep`, so the tokens are the same.
"""

import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from lm_eval_takeover.decoding.costs import PassCost, Schedule
from lm_eval_takeover.decoding.emission import REST, SCORE, TAKEN, count_standing, emit
from lm_eval_takeover.decoding.rows import Row, blame, build_block, list_rows, stack_windows, upload_next
from lm_eval_takeover.decoding.stepwise import Pool, Stepwise
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.caches import HostCopy, upload
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.self_check import verify_pass
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import OBSERVED, Generation, Request
from lm_eval_takeover.method.sampling import drawing, place_rules
from lm_eval_takeover.pair.pair import Pair

logger = logging.getLogger(__name__)

_LEAST_SURVIVAL = 0.05  # a row drafts on while it stands with a higher probability


@dataclass(slots=True)
class Draft:
    """Drafted tokens of the rows in all slots. Lists have an entry per row; of a tensor's row as many count as it has tokens."""

    logits: Tensor  # `[rows, longest, vocab]`
    tokens: Tensor  # int64 `[rows, longest + 2]`, behind the last one of the text
    words: Tensor  # int64 `[rows, longest + 1]`
    limits: list[int]
    min_entropies: list[list[float]]  # of the drafter at each token: `-ln` of its largest probability, in nats
    survival: list[float]  # the probability that the whole draft stands; 0 for rows that have stopped
    pending: deque[tuple[int, list[int], HostCopy]]  # tokens on their way to the host, with their number and their rows

    @property
    def lengths(self) -> list[int]:
        """The numbers of drafted tokens. One that is on its way counts where a row still stands."""
        known = zip(self.min_entropies, self.survival, strict=True)
        return [len(entered) + len(self.pending) * bool(survival) for entered, survival in known]


class Blocks:
    """Texts that the donor's distribution decides: draft, verify, accept up to the first replaced token."""

    def __init__(self, pool: Pool, block_size: int | None) -> None:
        self.pool, self.policy, self.block_size = pool, pool.policy, block_size
        self.steps = Stepwise(pool)  # of a guide that goes on alone
        self._logits: Tensor | None = None  # `[rows, longest, vocab]` of a draft, used again by the next
        self._verified: tuple[Draft, list[int], list[bool]] | None = None  # the last draft, what stood, whether it ended there
        self._pays = True  # whether drafts pay for a lone guide; once they do not, it goes on alone

    @property
    def drafter(self) -> str:
        """The model that drafts: the host, and the base for a guide that writes alone."""
        return self.policy.host or "base"

    @cached_property
    def schedule(self) -> Schedule:
        drafter, donor = (PassCost.of(self.pool.readers[role].forward) for role in (self.drafter, self.pool.donor))
        return Schedule(drafter, donor, self.block_size, bonus=self.bonus)

    @property
    def bonus(self) -> bool:
        """Whether a whole draft gives one token more. Not under a gate, whose score needs the host's distribution."""
        return self.policy.host is None

    def advance(self) -> None:
        if not self._pays:
            if self.drafter in self.pool.readers:
                self.pool.drop(self.drafter)
                self._verified = self._logits = None
            return self.steps.advance()
        with drawing():
            draft = self._draft()
        drafted_counts = draft.lengths
        self._emit(draft, drafted_counts, self._verify(draft, drafted_counts))

    # Draft

    def _draft(self) -> Draft:
        pool, reader, draft = self.pool, self.pool.readers[self.drafter], self._empty_draft()
        count, columns = len(pool.slots), max(row.length for row in pool.slots)
        rows = list(range(count))  # those that go through the drafter's next pass
        number, step = 0, pool.draw_first(self.drafter, [rows], draft.tokens[:, :1], draft.words[:, 0])
        self._learn(columns)  # while the device computes
        least = self.schedule.break_even_rows(count, count, columns)
        while True:
            if len(rows) == count:
                draft.logits.select(1, number).copy_(step.logits)
                draft.tokens.select(1, number + 1).copy_(step.tokens)
            else:
                draft.logits[rows, number] = step.logits.to(pool.device)
                draft.tokens[rows, number + 1] = step.tokens.to(pool.device)
            ids = step.tokens.unsqueeze(1)
            draft.pending.append((number, rows, HostCopy(step.tokens, step.masses)))
            if len(draft.pending) > reader.pipeline_depth:
                self._append_drafted(draft, *draft.pending.popleft())
                standing = sum(map(bool, draft.survival))
                if sum(draft.survival) <= least[number + 1]:
                    break
                if not reader.pipeline_depth and 4 * standing <= len(rows):
                    # Few rows: gathering their keys and values costs less than the arithmetic of the others.
                    rows = [row for row, survival in enumerate(draft.survival) if survival]
                    ids = draft.tokens[rows, number + 1].unsqueeze(1)
                    least = self.schedule.break_even_rows(count, standing, columns)
            number += 1
            if number == max(draft.limits):
                break
            words = draft.words[:, number] if len(rows) == count else draft.words[rows, number]
            step = reader.draft(rows, ids, number, words, pool.sampling)
        return draft

    def _learn(self, columns: int) -> None:
        """What the last block says of the lengths of the next ones."""
        if self.block_size is None and self._verified is not None:
            (draft, counts, ended), self._verified = self._verified, None
            for drafted in draft.pending:
                self._append_drafted(draft, *drafted)
            stood = (entropies[:count] for entropies, count in zip(draft.min_entropies, counts, strict=True))
            self.schedule.rates.learn(zip(stood, ended, strict=True))
        if self.bonus:
            self._pays = self.schedule.drafts_pay(len(self.pool.slots), columns)

    def _empty_draft(self) -> Draft:
        pool, count = self.pool, len(self.pool.slots)
        most, longest = self.schedule.limit(count, pool.vocab, pool.device), pool.readers[pool.donor].longest
        if longest is not None:
            most = min(most, longest - self.bonus)
        limits = [min(most, row.remaining) for row in pool.slots]
        longest = max(limits)
        if self._logits is None or self._logits.shape[0] < count or self._logits.shape[1] < longest:
            # Uninitialised: only drafted positions are read.
            self._logits = torch.empty(count, longest, pool.vocab, device=pool.device)
        tokens, words = upload_next(pool.slots, longest + 1, pool.device)
        known: list[list[float]] = [[] for _ in limits]
        return Draft(self._logits[:count], tokens, words, limits, known, [1.0] * count, deque())

    def _append_drafted(self, draft: Draft, number: int, rows: list[int], step: HostCopy) -> None:
        rates = self.schedule.rates
        for row, token, mass in zip(rows, *(column.tolist() for column in step.fetch()), strict=True):
            survival = draft.survival[row]
            if not survival:
                continue
            min_entropy = math.log(mass) if mass > 1 else 0.0
            draft.min_entropies[row].append(min_entropy)
            if self.block_size is None:
                survival *= 1 - rates.rate(min_entropy)
            ends = len(draft.min_entropies[row]) == draft.limits[row] or token in self.pool.eos
            draft.survival[row] = 0.0 if ends or survival <= _LEAST_SURVIVAL else survival

    # Verify

    def _verify(self, draft: Draft, drafted_counts: Sequence[int]) -> list[Tensor]:
        """Decide each row up to the first token that differs from the draft, by one pass of the donor. The only wait.

        On the host: tokens `[rows, k]`, their records, the numbers `[rows]` that stand, and whether the last one ended the draft.
        On the device: the scores before and of these tokens `[rows, window + k]`. With a bonus, k is one more than was drafted.
        """
        pool, rows, new = self.pool, self.pool.slots, max(drafted_counts) + self.bonus
        donor = pool.readers[pool.donor].read(range(len(rows)), draft.tokens[:, :new])[:, :new].to(pool.device)
        drafted, windows = draft.tokens[:, 1 : new + 1], stack_windows(rows)
        lengths = upload(torch.tensor(drafted_counts), pool.device)
        places = torch.arange(new, device=pool.device)
        host = draft.logits[:, :new] if self.policy.host else None
        rules = place_rules(pool.sampling, pool.device)
        emitted = emit(
            self.policy,
            rules._replace(table=rules.table.expand(len(rows), -1)),
            host,
            donor,
            build_block(self.policy, rows, drafted, drafted, windows),
            draft.words[:, :new],
            drafted=drafted,
            live=places < lengths[:, None] + self.bonus,
            traced=pool.traced,
        )
        counts, ended = count_standing(emitted.tokens, drafted, lengths, bonus=self.bonus)
        scores, stands = emitted.records[..., SCORE], places < counts[:, None]
        models = [(pool.donor, donor)] if host is None else [(self.drafter, host), (pool.donor, donor)]
        if self.policy.scorer is not None:
            sound = scores.isfinite()
        else:  # the logits must be distributions
            sound = torch.stack([logits.amax(-1).isfinite() for _, logits in models]).all(0)
        *verdict, is_sound = HostCopy(emitted.tokens, emitted.records, counts, ended, (sound | ~stands).all()).fetch()
        if not bool(is_sound):  # an infinite score of finite logits is a spike
            for role, logits in models:
                broken = (~logits.amax(-1).isfinite() & stands).any(1)
                if bool(broken.any()):
                    row = rows[int(broken.byte().argmax())]
                    raise blame(pool.readers[role].forward.member.refuse_logits(row.name), [row.index])
            self.policy.refuse_nan(scores[stands])
        return [*verdict, torch.cat([windows, scores], 1)]

    # Emit

    def _emit(self, draft: Draft, drafted_counts: Sequence[int], verdict: Sequence[Tensor]) -> None:
        pool, (tokens, records, counts, ended, windows) = self.pool, verdict
        observed = records[..., REST : REST + len(OBSERVED)].numpy() if pool.traced else [None] * len(pool.slots)
        lists = (tokens, records[..., TAKEN].bool(), records[..., SCORE])
        stand: list[int] = counts.tolist()
        rows = zip(pool.slots, drafted_counts, stand, windows, *(column.tolist() for column in lists), observed, strict=True)
        for slot, (row, drafted, count, window, written_tokens, taken, values, seen) in enumerate(rows):
            written, _ = pool.emit(slot, written_tokens[:count], taken[:count], values[:count], seen)
            row.window = window[written : written + self.policy.window]
            row.generation.count_passes(self.drafter, drafted)
            row.generation.count_passes(pool.donor, 1)
            pool.readers[pool.donor].lengths[slot] += written
            pool.readers[self.drafter].lengths[slot] += min(written, drafted)
        self._verified = draft, stand, ended.tolist()


@torch.inference_mode()
def generate(
    pair: Pair,
    policy: Policy,
    requests: Sequence[Request],
    *,
    begun: Sequence[Generation] | None = None,
    batch_size: int = 1,
    block_size: int | None = None,
    traced: bool = False,
    **options: Any,
) -> Iterator[tuple[int, Generation]]:
    """As `lockstep.generate`: `(index into requests, generation)` as samples finish, with the same tokens.

    block_size: the length of a draft; None takes it from costs and rates. options: `seed` and `count_tokens`, as there.
    """
    drafted = policy.drafts or (
        policy.host is None and block_size != 1 and _drafts_for_guide(pair, requests, batch_size, block_size)
    )
    roles = ("base", "guide") if drafted else policy.roles
    passes = {role: prepare_pass(pair.member(role)) for role in roles}

    def settings(row: Row) -> tuple[float, ...]:
        return astuple(row.request.sampling)

    rows = list_rows(pair, policy, requests, begun, traced)
    # Samples of one prompt stay together. The longest prompts come first, so that buffers grow once.
    rows.sort(key=lambda row: (settings(row), -len(row.request.text), row.request.text, row.index))
    for _, group in groupby(rows, key=settings):
        pool = Pool(pair, policy, passes, list(group), batch_size=batch_size, **options)
        engine = Blocks(pool, block_size) if drafted else Stepwise(pool)
        yield from pool.run(engine.advance)
        del pool, engine  # their readers, before there are others


def _drafts_for_guide(pair: Pair, requests: Sequence[Request], batch_size: int, block_size: int | None) -> bool:
    """Whether a base can draft for the guide, and drafts are fixed or worth their cost."""
    if pair.base is None or pair.guide is None or not requests:
        return False
    rows = min(batch_size, len(requests))
    columns = max(len(request.prompt) + request.max_new_tokens // 2 for request in requests)
    try:
        drafter, donor = (PassCost.of(verify_pass(member, rows)) for member in (pair.base, pair.guide))
    except ArgumentError as error:
        logger.warning("%s; the guide writes without drafts", error)
        return False
    return Schedule(drafter, donor, block_size, bonus=True).drafts_pay(rows, columns)

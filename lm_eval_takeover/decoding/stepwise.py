"""Policies that decide without the donor (`entropy`, `random`, `early`, one model alone), so nothing is verified.

The model that writes a token first reads the tokens that it has skipped, in the same pass. The same rows continue with the same
model until one of them ends or needs the other model. Choice, draw and next token stay on the device: a GPU computes one token
while the host stores the one before.
"""

import math
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lm_eval_takeover.decoding.costs import PassCost
from lm_eval_takeover.decoding.pool import Pool
from lm_eval_takeover.decoding.rows import Decision, blame, build_block, stack_windows, upload_words
from lm_eval_takeover.forward.caches import LONGEST
from lm_eval_takeover.forward.reader import Drafted
from lm_eval_takeover.forward.transfers import HostCopy, upload
from lm_eval_takeover.method.gate import push
from lm_eval_takeover.method.observations import observe
from lm_eval_takeover.method.sampling import drawing

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

    def advance(self, slots: Sequence[int]) -> None:
        ahead = self._look_ahead(slots)
        due = sum(taken for taken, _ in ahead)
        # A pass has a cost of its own, whatever its rows: takeovers wait for others.
        donor_writes = due >= _DUE_SHARE * len(slots)
        writing = [slot for slot, (taken, _) in zip(slots, ahead, strict=True) if taken is donor_writes]
        groups = self._group(writing) if donor_writes else [writing]
        self._write(groups, donor_writes, min(count for taken, count in ahead if taken is donor_writes))

    def _look_ahead(self, slots: Sequence[int]) -> list[tuple[bool, int]]:
        """For each row: whether the donor writes its next token, and for how many tokens, at most, that holds."""
        rows = self.pool.rows(slots)
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
        words, windows = upload_words(rows, count, pool.device), stack_windows(rows) if judged else None
        words = self.policy.choose_words(words, torch.ones_like(words, dtype=torch.bool)) if taken else words
        standing, pending = set(slots), deque[Step]()
        ids = torch.empty(0)
        with drawing():
            for number in range(count):
                if number:
                    drafted = reader.draft(slots, ids, number, words[:, number], pool.sampling)
                else:
                    drafted = pool.draw_first(role, groups, words[:, 0])
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
        return observe(tokens, host, donor, base_logits=self.policy.choose_base(host, donor), host_tokens=drawn)

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
                raise blame(pool.passes[role].member.refuse_logits(row.name), [row.index])
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
        """Of a pass of the donor."""
        return PassCost.of(self.pool.passes[self.pool.donor])

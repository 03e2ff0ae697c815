"""Takeovers that are known without the donor (`entropy`, `random`, `early`, one model alone): nothing is drafted.

One token at a time comes from the model that writes it, which first reads, in the same pass, what it has skipped.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.decoding.costs import PassCost
from lm_eval_takeover.decoding.pool import Pool
from lm_eval_takeover.decoding.rows import Decision
from lm_eval_takeover.method.gate import push
from lm_eval_takeover.method.observations import OBSERVED, observe

_UNREAD_AT_ONCE = 4096  # tokens, padding included, of a pass of several rows


class Stepwise(Pool):
    """Decide, ask, draw, emit: the next token of each row."""

    def advance(self, slots: Sequence[int]) -> list[int]:
        decisions, hosted, host_logits = self._decide([slot for slot in slots if self.slots[slot].due is None])
        groups = self._group([slot for slot in slots if self.slots[slot].due is not None])
        donated = [slot for group in groups for slot in group]
        donor_logits = self._read_groups(groups) if groups else None
        for slot in donated:
            due = self.slots[slot].due
            assert due is not None
            decisions[slot] = due
        tokens = self._draw(hosted, host_logits) | self._draw(donated, donor_logits)
        observed = self._observe(tokens, decisions, hosted, host_logits, donated, donor_logits) if self.traced else {}
        ended = []
        for slot, token in tokens.items():
            decision, row = decisions[slot], self.slots[slot]
            row.window, row.due = decision.window, None
            if self.emit(slot, [token], [decision.takeover], [decision.score], observed.get(slot))[1]:
                ended.append(slot)
        return ended

    def _decide(self, slots: list[int]) -> tuple[dict[int, Decision], list[int], Tensor | None]:
        """The policy's decisions on these rows; the slots that the host writes, and its logits `[rows, vocab]` for them.

        The others are due from the donor. The host is asked first where its distribution is the score.
        """
        if not slots:
            return {}, [], None
        scored, needs_token = self.policy.scorer is not None, self.policy.needs_token
        logits = self.read_unread(self.host, slots) if scored or needs_token else None
        drawn = self._draw_tensor(slots, logits) if logits is not None and needs_token else None
        nothing = torch.full((len(slots),), torch.nan, device=self.device)
        scores = nothing if logits is None else self.policy.scores(logits, None, drawn)
        self.policy.refuse_nan(scores)
        block = self.block(slots, scores[:, None], None if drawn is None else drawn[:, None])
        taken = self.policy.decide(block)[:, 0].tolist()
        windows = push(block.window, scores) if scored else block.window
        decisions = {
            slot: Decision(takeover, score, window)
            for slot, takeover, score, window in zip(slots, taken, scores.tolist(), windows, strict=True)
        }
        for place, slot in enumerate(slots):
            if taken[place]:
                self.slots[slot].due = decisions[slot]
                if self.traced and logits is not None:
                    decisions[slot].host_logits = logits[place].clone()
        hosted = [slot for slot in slots if not decisions[slot].takeover]
        if logits is None:
            return decisions, hosted, self.read_unread(self.host, hosted) if hosted else None
        return decisions, hosted, logits if len(hosted) == len(slots) else logits[[not takeover for takeover in taken]]

    def _read_groups(self, groups: Sequence[Sequence[int]]) -> Tensor:
        """The donor's next-token logits `[rows, vocab]` of these groups' slots, one group behind the other."""
        logits = torch.empty(sum(map(len, groups)), self.vocab, device=self.device)
        start = 0
        for group in groups:  # the next pass overwrites what a pass returns
            logits[start : start + len(group)] = self.read_unread(self.donor, group)
            start += len(group)
        return logits

    def _group(self, due: Sequence[int]) -> list[list[int]]:
        """These slots, whose tokens are the donor's, by the passes that serve them.

        Rows share a pass, those with the least to read first, until what one more would pad costs more than a pass of its own.
        """
        lengths = self.readers[self.donor].lengths if due else []
        groups: list[list[int]] = []
        longest = 0
        for unread, slot in sorted((self.slots[slot].length - lengths[slot], slot) for slot in due):
            padding = len(groups[-1]) * (unread - longest) if groups else 0
            if (
                not groups
                or padding * self._cost.per_token > self._cost.fixed
                or (len(groups[-1]) + 1) * unread > _UNREAD_AT_ONCE
            ):
                groups.append([])
            groups[-1].append(slot)
            longest = unread
        return groups

    @cached_property
    def _cost(self) -> PassCost:
        """Of a pass of the donor."""
        return PassCost.of(self.passes[self.donor])

    def _draw(self, slots: Sequence[int], logits: Tensor | None) -> dict[int, int]:
        """The next token of each of these slots, from logits `[rows, vocab]`."""
        if logits is None or not slots:
            return {}
        return dict(zip(slots, self._draw_tensor(slots, logits).tolist(), strict=True))

    def _draw_tensor(self, slots: Sequence[int], logits: Tensor) -> Tensor:
        """As `_draw`: ids `[rows]`."""
        return self.draw(logits, self.words(slots, 1)[:, 0])

    def _observe(
        self,
        tokens: Mapping[int, int],
        decisions: Mapping[int, Decision],
        hosted: Sequence[int],
        host_logits: Tensor | None,
        donated: Sequence[int],
        donor_logits: Tensor | None,
    ) -> dict[int, NDArray[np.float32]]:
        """For the trace `[1, OBSERVED]` of each slot: what the models that were asked thought of its token."""
        waited = [(slot, kept) for slot in donated if (kept := decisions[slot].host_logits) is not None]
        asked: list[tuple[str, Sequence[int], Tensor | None]] = [
            (self.host, hosted, host_logits),
            (self.host, [slot for slot, _ in waited], torch.stack([kept for _, kept in waited]) if waited else None),
            (self.donor, donated, donor_logits),
        ]
        observed = {slot: np.full((1, len(OBSERVED)), np.nan, dtype=np.float32) for slot in tokens}
        for role, slots, logits in asked:
            if logits is None or not slots:
                continue
            chosen = torch.tensor([tokens[slot] for slot in slots], device=logits.device)
            host, donor = (logits, None) if role == self.policy.host else (None, logits)
            drawn = None if host is None else chosen if slots is hosted else self._draw_tensor(slots, host)
            base = logits if role == "base" else None
            seen = observe(chosen, host, donor, base_logits=base, host_tokens=drawn).cpu().numpy()
            for slot, values in zip(slots, seen, strict=True):
                known = ~np.isnan(values)
                observed[slot][0, known] = values[known]
        return observed

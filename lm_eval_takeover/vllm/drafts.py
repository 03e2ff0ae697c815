"""Which drafted tokens stand: the rule of blockwise verification on the rows of one batch.

The policy says which token is emitted at each position of a draft (`emission`). The first token that is not the drafted one ends
the draft. In a row without a draft the host draws one token as if it had drafted it. Nothing here waits for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_eval_takeover.decoding.emission import count_standing, share
from lm_eval_takeover.method.policy import DIRECTIONS
from lm_eval_takeover.vllm.slots import Slots, Track, place_numbers

PIECE = 2**28  # bytes of both models' logits that are gathered at a time


@dataclass(frozen=True, slots=True)
class Batch:
    """What the target has read. Each row has logits behind its text and behind each drafted token.

    positions `[rows]`: tokens of the text before, negative in an unfinished prompt. first `[rows]`: the place of a row's first
    logit. read `[logits]`: the token before each logit. drafts: numbers of drafted tokens. whole: the prompt is read to its end.
    """

    tracks: Sequence[Track]
    positions: Tensor
    first: Tensor
    read: Tensor
    drafts: Sequence[int]
    whole: Sequence[bool]


class Verifier:
    """Takes the place of vLLM's rejection sampler.

    drafted: the host's logits `[slots, k, vocab]` of each request's last draft. Without a draft, the first are those behind the
    text. None for a guide that writes alone, where the target's own draws decide.
    """

    def __init__(self, slots: Slots, vocab: int, drafted: Tensor | None) -> None:
        self.slots, self.vocab, self.drafted = slots, vocab, drafted
        self.drafting, self.verifying = DIRECTIONS[slots.policy.direction]

    def verify(self, batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens `[rows, k]`, and how many of each row stand, `[rows]`. logits: the target's, raw."""
        width = max(batch.drafts) + (self.drafted is None)  # a lone guide emits one token more
        place = torch.arange(max(1, width), device=self.slots.device)
        counts = place_numbers(batch.drafts, self.slots.device)
        at, read = (batch.first[:, None] + torch.minimum(near, counts[:, None]) for near in (place, place + 1))
        tokens = batch.read[read].long().clamp(0, self.vocab - 1)  # behind a row's draft: any token
        parts, step = [], self._count_rows(len(place), logits.element_size())
        for rows in (slice(start, start + step) for start in range(0, len(batch.drafts), step)):
            by_role = {self.verifying: share(logits[at[rows]], self.vocab)}
            drafted, tracks = None, batch.tracks[rows]
            if self.drafted is not None:
                slots = self.slots.place(tracks)
                host = by_role[self.drafting] = share(self.drafted[slots, : len(place)], self.vocab)
                drafted = tokens[rows]
                if 0 in batch.drafts[rows]:  # the host draws there as if it had drafted
                    bare = counts[rows] == 0
                    drawn = self.slots.draw(slots, batch.positions[rows], host[:, 0], bare)
                    drafted[:, 0] = torch.where(bare, drawn, drafted[:, 0])
            drafts = [count or -1 for count in batch.drafts[rows]]
            emitted = self.slots.decide(tracks, batch.positions[rows], by_role, drafted=drafted, drafts=drafts)
            parts.append(emitted.tokens)
        emitted_tokens = torch.cat(parts)
        # The host's draw stands for a draft.
        lengths = counts if self.drafted is None else counts.clamp(min=1)
        stands, _ = count_standing(emitted_tokens, tokens, lengths, bonus=self.drafted is None)
        alone = place_numbers([track.settings.lockstep for track in batch.tracks], tokens.device).bool()
        return emitted_tokens, torch.where(alone, stands.clamp(max=1), stands)

    def rehearse(self, block: int, logits: Tensor) -> None:
        """Allocate the memory of the largest step while vLLM measures its own; stored drafts are not counted.

        logits `[rows, vocab]`: some of the target's. The draws of `verify` and of the drafter are rehearsed, too.
        """
        capacity, device = self.slots.capacity, self.slots.device
        width = block + (self.drafted is None)
        some = min(capacity, self._count_rows(width, logits.element_size()))
        read = logits.new_zeros(capacity * (block + 1), logits.shape[1])
        target = share(read[: some * width].clone().view(some, width, -1), self.vocab)
        drafted = torch.zeros(some, block, dtype=torch.int64, device=device)
        nobody, host = drafted[:1, 0] - 1, target[:1].clone()
        for asked in (None, nobody < 0):
            self.slots.draw(nobody, -nobody, host[:, 0], asked)
        if self.drafted is None:
            return self.slots.rehearse({self.verifying: target})
        self.slots.rehearse({self.drafting: target.clone(), self.verifying: target}, drafted=drafted)

    def _count_rows(self, width: int, size: int) -> int:
        """How many rows of this many positions are decided at a time; `size` is the bytes of a logit."""
        return max(1, PIECE // (2 * width * self.vocab * size))

"""Which drafted tokens stand: the rule of blockwise verification on the rows of one batch, whichever runner of vLLM read them.

The policy says which token is emitted at each position of a draft (`gate_step`). The first token that is not the drafted one ends
the draft. A row without a draft emits one token, and the host draws there as if it had drafted one. Nothing here waits for the
device.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_eval_takeover.method.policy import DIRECTIONS
from lm_eval_takeover.method.verification import count_standing
from lm_eval_takeover.vllm.gate_step import share
from lm_eval_takeover.vllm.slots import Slots, Track, place_numbers

_PIECE = 2**28  # bytes of both models' logits that are put beside each other at a time


@dataclass(frozen=True, slots=True)
class Batch:
    """What the target has read. Each row has one logit more than drafted tokens: behind the text, and behind each of them.

    positions `[rows]`: tokens emitted before, negative where a prompt is not read to its end. first `[rows]`: where the logits
    of a row begin. read `[logits]`: the token before each logit. drafts: how many tokens were drafted. whole: whether the prompt
    is read to its end.
    """

    tracks: Sequence[Track]
    positions: Tensor
    first: Tensor
    read: Tensor
    drafts: Sequence[int]
    whole: Sequence[bool]

    @property
    def bare(self) -> list[int]:
        """Rows without a draft."""
        return [row for row, count in enumerate(self.drafts) if not count]

    @property
    def needs_host(self) -> bool:
        """Whether a token is emitted of a row without a draft."""
        return any(self.whole[row] for row in self.bare)


class Verifier:
    """Takes the place of vLLM's rejection sampler."""

    def __init__(self, slots: Slots, vocab: int) -> None:
        self.slots, self.vocab = slots, vocab
        self.drafting, self.verifying = DIRECTIONS[slots.policy.direction]

    @property
    def keeps_drafts(self) -> bool:
        """Whether the host's logits decide; for a guide that writes alone, its draws do."""
        return self.slots.policy.host is not None

    def verify(
        self,
        batch: Batch,
        logits: Tensor,
        host: Callable[[slice, int], Tensor],
        undrafted: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The tokens `[rows, k]` of which `[rows]` stand. `logits` are the target's, raw.

        host: of a slice of rows, the logits `[rows, k, vocab]` of so many drafted positions; behind a row's own draft, anything.
        undrafted: the host's logits `[rows, vocab]` behind the text, where a row has no draft. Neither is asked for a lone guide.
        """
        width = max(batch.drafts) + (not self.keeps_drafts)  # a lone guide emits one more, behind its draft
        place = torch.arange(max(1, width), device=self.slots.device)
        counts = place_numbers(batch.drafts, self.slots.device)
        at, drafted = (batch.first[:, None] + torch.minimum(one, counts[:, None]) for one in (place, place + 1))
        drafted = batch.read[drafted].long().clamp(0, self.vocab - 1)  # behind a row's own draft may stand any token
        parts = []
        for rows in _split(len(batch.drafts), self._count_rows(len(place), logits.element_size())):
            by_role = {self.verifying: share(logits[at[rows]], self.vocab)}
            known = None
            if self.keeps_drafts:
                own = by_role[self.drafting] = host(rows, len(place))
                self._draw_undrafted(batch, rows, own, undrafted, drafted)
                known = drafted[rows]
            drafts = [count or -1 for count in batch.drafts[rows]]
            emitted = self.slots.decide(
                batch.tracks[rows], batch.positions[rows], by_role, drafted=known, drafts=drafts
            )
            parts.append(emitted.tokens)
        tokens = torch.cat(parts)
        return tokens, self._count_standing(batch.tracks, tokens, drafted, counts)

    def _draw_undrafted(
        self, batch: Batch, rows: slice, own: Tensor, undrafted: Tensor | None, drafted: Tensor
    ) -> None:
        """Of rows without a draft the host's logits, into `own`, and its draws, into `drafted`, at their first place."""
        start = rows.indices(len(batch.drafts))[0]
        bare = [row for row in batch.bare if start <= row < start + len(own)]
        if not bare:
            return
        some = place_numbers(bare, self.slots.device)
        if undrafted is not None:
            own[some - start, 0] = undrafted[some].to(own.dtype)
        tracks = [batch.tracks[row] for row in bare]
        drafted[some, 0] = self.slots.draw(tracks, batch.positions[some], own[some - start, 0])

    def _count_standing(self, tracks: Sequence[Track], tokens: Tensor, drafted: Tensor, counts: Tensor) -> Tensor:
        """How many tokens stand of each row: up to the first that is not the drafted one, and a bonus for a lone guide."""
        lengths = counts.clamp(min=1) if self.keeps_drafts else counts  # the host's draw stands for a draft
        stands, _ = count_standing(tokens, drafted, lengths, bonus=not self.keeps_drafts)
        alone = place_numbers([track.settings.lockstep for track in tracks], tokens.device).bool()
        return torch.where(alone, stands.clamp(max=1), stands)

    def rehearse(self, block: int, dtype: torch.dtype) -> None:
        """Hold what a step of as many rows as may be holds, while vLLM measures its memory: drafts that it keeps not counted."""
        capacity, device = self.slots.capacity, self.slots.device
        read = torch.zeros(capacity * (block + 1), self.vocab, dtype=dtype, device=device)
        width = block + (not self.keeps_drafts)
        some = min(capacity, self._count_rows(width, read.element_size()))
        target = share(read[: some * width].clone().view(some, width, -1), self.vocab)
        if not self.keeps_drafts:
            return self.slots.rehearse({self.verifying: target})
        drafted = torch.zeros(some, block, dtype=torch.int64, device=device)
        self.slots.rehearse({self.drafting: target.clone(), self.verifying: target}, drafted=drafted)

    def _count_rows(self, width: int, size: int) -> int:
        """How many rows of so many positions are decided at a time; `size` is the bytes of a logit."""
        return max(1, _PIECE // (2 * width * self.vocab * size))


def _split(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))

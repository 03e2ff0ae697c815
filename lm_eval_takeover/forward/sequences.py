"""Rows of one length that one model has read, by transformers' own pass: lockstep's, for any architecture."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import DynamicCache

from lm_eval_takeover.forward.padded_cache import create_cache, select_rows
from lm_eval_takeover.forward.padding import pad_left
from lm_eval_takeover.pair.member import Member


@dataclass(slots=True)
class Sequences:
    """Rows that one model has read: its cache, left padded, and the logits of the next token.

    mask `[rows, length]`, logits `[rows, vocab]`. Without a cache, ids `[rows, length]` are read again at every token.
    """

    member: Member
    vocab: int
    cache: DynamicCache | None
    ids: Tensor | None
    mask: Tensor
    logits: Tensor

    @classmethod
    def prefill(
        cls, member: Member, vocab: int, prompts: Sequence[Sequence[int]], *, cached: bool = True
    ) -> "Sequences":
        ids, mask = pad_left(prompts, member.device)
        cache = create_cache(member.model.config) if cached else None
        sequences = cls(member, vocab, cache, None if cached else ids[:, :0], mask[:, :0], torch.empty(0))
        sequences.read(ids, mask)
        return sequences

    def append(self, tokens: Tensor) -> None:
        """Read one more token per row: tokens `[rows]`."""
        ids = tokens.to(self.member.device)[:, None]
        self.read(ids, torch.ones_like(ids))

    def read(self, ids: Tensor, mask: Tensor) -> None:
        """Read `ids` `[rows, new]` behind what was read; mask `[rows, new]` is 0 on padding, which stands before all text."""
        self.mask = torch.cat([self.mask, mask], dim=1)
        if self.ids is not None:
            ids = self.ids = torch.cat([self.ids, ids], dim=1)
        self.logits = self.member.compute_logits(ids, self.mask, cache=self.cache)[:, -1, : self.vocab]

    def select(self, rows: Sequence[int]) -> "Sequences":
        """These rows, in this order; a row may be taken more than once. The original stays as it is."""
        index = torch.tensor(rows, device=self.member.device)
        return replace(
            self,
            cache=None if self.cache is None else select_rows(self.cache, index),
            ids=None if self.ids is None else self.ids[index],
            mask=self.mask[index],
            logits=self.logits[index],
        )

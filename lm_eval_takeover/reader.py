"""What one model has read: rows with their own lengths, and forward passes over any of them."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lm_eval_takeover.lean import LeanDecoder
from lm_eval_takeover.pair import Member
from lm_eval_takeover.ragged_cache import RaggedCache, layer_windows, plan_for

logger = logging.getLogger(__name__)


class ForwardPass:
    """One model's forward pass over a ragged cache: lean where the architecture is known, transformers' own elsewhere."""

    def __init__(self, member: Member, vocab: int) -> None:
        self.member, self.vocab, self.model = member, vocab, member.model
        self.windows = layer_windows(member.model.config, f"{member.role}='{member.id.id}'")
        self._limit = member.max_length or 2**31
        self.lean: LeanDecoder | None = None
        if LeanDecoder.supports(self.model):
            lean = LeanDecoder(self.model)
            if self._agrees(lean):
                self.lean = lean
            else:
                logger.warning("%s: the lean pass differs from transformers'; not used", member.id.id)

    @torch.inference_mode()
    def _agrees(self, lean: LeanDecoder) -> bool:
        """Whether the lean pass gives the logits of transformers' own, on a few tokens."""
        ids = (torch.arange(9, device=self.member.device) * 7919 % self.vocab)[None]
        found = []
        for one in (lean, None):
            self.lean = one
            found.append(self(RaggedCache(len(self.windows), 1), [0], [0], ids).log_softmax(-1))
        self.lean = None
        precise = found[0].dtype == torch.float32 and self.model.dtype == torch.float32
        return bool((found[0] - found[1]).abs().max() <= (2e-3 if precise else 0.5))

    def __call__(
        self, cache: RaggedCache, slots: Sequence[int], lengths: Sequence[int], ids: Tensor, *, keep: bool = True
    ) -> Tensor:
        """Read `ids` `[rows, new]` into these slots from their lengths on: float32 logits `[rows, new, vocab]`.

        Without `keep` only the cache is filled, and what comes back means nothing.
        """
        device = self.member.device
        whole = list(slots) == list(range(len(slots)))
        new = ids.shape[1]
        plan = cache.plan = plan_for(lengths, new, slots, device, whole)
        positions = plan.places if plan.columns <= self._limit else plan.places.clamp(max=self._limit - 1)
        masks = self._masks(plan.places, plan.columns, plan.start is not None and new == 1)
        if self.lean is not None:
            hidden = self.lean.hidden(ids, positions, masks, cache)
            if not keep:
                return hidden
            return linear_logits(hidden, self.lean.head, self.vocab)
        if None in masks:  # transformers would make a mask of its own
            masks = self._masks(plan.places, plan.columns, False)
        options: dict[str, Any] = {"position_ids": positions, "logits_to_keep": new if keep else 1}
        output = self.model(
            input_ids=ids,
            attention_mask=self._as_transformers(masks),
            past_key_values=cache,
            use_cache=True,
            **{name: value for name, value in options.items() if name in self.member.takes},
        )
        return output.logits[..., : self.vocab].float()  # type: ignore[no-any-return]

    def _masks(self, places: Tensor, columns: int, sees_all: bool) -> list[Tensor | None]:
        """One additive mask `[rows, 1, new, columns]` per layer: a query sees its own column and those before it."""
        made: dict[int | None, Tensor | None] = {}
        for window in set(self.windows):
            if sees_all and (window is None or columns <= window):
                made[window] = None
                continue
            column = torch.arange(columns, device=places.device)
            hidden = column > places[..., None]
            if window is not None:
                hidden |= column <= places[..., None] - window
            mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=places.device)
            made[window] = mask.masked_fill_(hidden, -torch.inf)[:, None]
        return [made[window] for window in self.windows]

    def _as_transformers(self, masks: list[Tensor | None]) -> Any:
        kinds = set(self.windows)
        if len(kinds) == 1:
            return masks[0]
        return {
            "full_attention": masks[self.windows.index(None)],
            "sliding_attention": next(m for m, window in zip(masks, self.windows, strict=True) if window is not None),
        }


def linear_logits(hidden: Tensor, head: Tensor, vocab: int) -> Tensor:
    """float32 logits `[rows, new, vocab]` of the shared part of the vocabulary."""
    return torch.nn.functional.linear(hidden, head[:vocab]).float()


class Reader:
    """The rows of one model in their slots. `lengths[slot]` is how many tokens a row has read; less of it is a roll-back."""

    def __init__(self, forward: ForwardPass, slots: int) -> None:
        self.forward = forward
        self.cache = RaggedCache(len(forward.windows), slots)
        self.lengths = [0] * slots

    @property
    def device(self) -> torch.device:
        return self.forward.member.device

    def read(self, slots: Sequence[int], ids: Tensor, ahead: int = 0, *, keep: bool = True) -> Tensor:
        """Logits `[rows, new, vocab]` after each of `ids` `[rows, new]`, read `ahead` tokens behind each row's length.

        Lengths stay as they are: what was read counts once the caller adds it.
        """
        lengths = [self.lengths[slot] + ahead for slot in slots]
        return self.forward(self.cache, slots, lengths, ids.to(self.device), keep=keep)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> "Reader":
        """A reader that has read these prompts, one a row."""
        made = Reader(self.forward, len(prompts))
        longest = max(map(len, prompts))
        if longest:
            ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
            made.read(range(len(prompts)), ids, keep=False)
        made.lengths = [len(prompt) for prompt in prompts]
        return made

    def take(self, source: "Reader", row: int, slot: int) -> None:
        """Continue in `slot` what a row of `source` has read."""
        self.cache.copy(source.cache, row, slot, source.lengths[row])
        self.lengths[slot] = source.lengths[row]

    def move(self, from_: int, to: int) -> None:
        """Continue in another slot, over whatever is there."""
        self.cache.copy(self.cache, from_, to, self.lengths[from_])
        self.lengths[to] = self.lengths[from_]

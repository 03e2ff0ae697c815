"""What one model has read: rows with their own lengths, and forward passes over any of them."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lm_eval_takeover.lean import LeanDecoder
from lm_eval_takeover.pair import Member, right_padded
from lm_eval_takeover.ragged_cache import RaggedCache, layer_windows, plan_for

logger = logging.getLogger(__name__)


_CHUNK = 512  # columns of a prompt that are read at a time: masks grow with their product with the length


def forward_pass(member: Member) -> "ForwardPass":
    """The pass of this model, prepared once. Raises ArgumentError for models whose rows cannot have their own lengths."""
    if member.prepared is None:
        member.prepared = ForwardPass(member)
    return member.prepared  # type: ignore[no-any-return]


class ForwardPass:
    """One model's forward pass over a ragged cache: lean where the architecture is known, transformers' own elsewhere."""

    def __init__(self, member: Member) -> None:
        self.member, self.model = member, member.model
        config = member.model.config
        self.windows = layer_windows(config, f"{member.role}='{member.id.id}'")
        # Where positions are rows of a table, padding must not point behind its end.
        rotated = getattr(config.get_text_config(), "rope_parameters", None) is not None
        self._last_position = 2**31 if rotated else (member.max_length or 2**31) - 1
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
        vocab = len(lean.head)
        ids = (torch.arange(9, device=self.member.device) * 7919 % vocab)[None]
        found = []
        for one in (lean, None):
            self.lean = one
            found.append(self(RaggedCache(len(self.windows), 1), [0], [0], ids, vocab).log_softmax(-1))
        self.lean = None
        precise = found[0].dtype == torch.float32 and self.model.dtype == torch.float32
        return bool((found[0] - found[1]).abs().max() <= (2e-3 if precise else 0.5))

    def __call__(
        self,
        cache: RaggedCache,
        slots: Sequence[int],
        lengths: Sequence[int],
        ids: Tensor,
        vocab: int,
        only: Tensor | None = None,
    ) -> Tensor:
        """Read `ids` `[rows, new]` into these slots from their lengths on: float32 logits `[rows, new, vocab]`.

        `only` `[rows]` picks one column of each row: `[rows, 1, vocab]`. With vocab 0 nothing but the cache is filled.
        """
        device = self.member.device
        new = ids.shape[1]
        plan = cache.plan = plan_for(lengths, new, slots, device)
        positions = plan.places.clamp(max=self._last_position) if plan.columns > self._last_position else plan.places
        if self.lean is not None:
            masks = self._masks(plan.places, plan.columns, plan.start is not None and new == 1)
            hidden = self.lean.hidden(ids, positions, masks, cache)
            if only is not None:
                hidden = hidden[torch.arange(len(hidden), device=device), only][:, None]
            return torch.nn.functional.linear(hidden, self.lean.head[:vocab]).float() if vocab else hidden
        options: dict[str, Any] = {"position_ids": positions, "logits_to_keep": new if vocab and only is None else 1}
        output = self.model(
            input_ids=ids,
            attention_mask=self._as_transformers(self._masks(plan.places, plan.columns, False)),
            past_key_values=cache,
            use_cache=True,
            **{name: value for name, value in options.items() if name in self.member.takes},
        )
        if only is None or new == 1:
            return output.logits[..., :vocab].float()  # type: ignore[no-any-return]
        # The chosen tokens are read once more, over themselves, so that no other one needs its logits.
        chosen = ids.gather(1, only[:, None])
        ends = [length + column for length, column in zip(lengths, only.tolist(), strict=True)]
        return self(cache, slots, ends, chosen, vocab)

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


class Reader:
    """The rows of one model in their slots. `lengths[slot]` is how many tokens a row has read; less of it is a roll-back."""

    def __init__(self, forward: ForwardPass, slots: int, vocab: int) -> None:
        self.forward, self.vocab = forward, vocab
        self.cache = RaggedCache(len(forward.windows), slots)
        self.lengths = [0] * slots

    @property
    def device(self) -> torch.device:
        return self.forward.member.device

    def read(self, slots: Sequence[int], ids: Tensor, ahead: int = 0) -> Tensor:
        """Logits `[rows, new, vocab]` after each of `ids` `[rows, new]`, read `ahead` tokens behind each row's length.

        Lengths stay as they are: what was read counts once the caller adds it.
        """
        lengths = [self.lengths[slot] + ahead for slot in slots]
        return self.forward(self.cache, slots, lengths, ids.to(self.device), self.vocab)

    def read_to_last(self, slots: Sequence[int], ids: Tensor, counts: Sequence[int]) -> Tensor:
        """Logits `[rows, vocab]` after the last of `counts` tokens of each row of `ids`, padded behind."""
        lengths = [self.lengths[slot] for slot in slots]
        only = torch.tensor(counts, device=self.device) - 1
        return self.forward(self.cache, slots, lengths, ids.to(self.device), self.vocab, only)[:, 0]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> "Reader":
        """A reader that has read these prompts, one a row."""
        made = Reader(self.forward, len(prompts), self.vocab)
        ids = right_padded(prompts, self.device)
        for start in range(0, ids.shape[1], _CHUNK):
            part = ids[:, start : start + _CHUNK]
            self.forward(made.cache, range(len(prompts)), [start] * len(prompts), part, 0)
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

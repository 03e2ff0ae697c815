"""One model's forward pass over a ragged cache: lean where the architecture is known, transformers' own elsewhere."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.lean_decoder import LeanDecoder, computes_bfloat16
from lm_eval_takeover.forward.ragged_cache import Plan, RaggedCache, keeps_state, read_layer_windows
from lm_eval_takeover.forward.transfers import choose_device
from lm_eval_takeover.pair.member import Member

logger = logging.getLogger(__name__)


def prepare_pass(member: Member) -> "ForwardPass | StatePass":
    """The pass of this model, prepared once. Raises ArgumentError for models that cannot be read in blocks."""
    if member.prepared_pass is None:
        member.prepared_pass = StatePass(member) if keeps_state(member.model.config) else ForwardPass(member)
    return member.prepared_pass  # type: ignore[no-any-return]


def release_memory(member: Member) -> None:
    """Drop the cache that this model's last run left for the next one."""
    if member.prepared_pass is not None:
        member.prepared_pass.left_reader = None


class StatePass:
    """A model with recurrent layers, which `state_reader` reads by transformers' own pass."""

    lean, graphed = None, False

    def __init__(self, member: Member) -> None:
        self.member, self.model = member, member.model
        self.left_reader: Any = None


class ForwardPass:
    """`forward(cache, slots, lengths, ids, vocab)` of one model.

    lean: None where transformers' own pass runs. `self_check` drops a lean pass that is wrong. graphed: in CUDA graphs.
    """

    def __init__(self, member: Member) -> None:
        self.member, self.model = member, member.model
        config = member.model.config
        name = f"{member.role}='{member.id.id}'"
        if member.cache_argument is None:
            raise ArgumentError(f"{name}: it has no cache of keys and values; use block_size=1")
        self.windows = read_layer_windows(config, name)
        if member.outgrows_rotation:
            reason = f"it rotates texts of more than {member.rotation_length} tokens otherwise, and a pass by its longest row"
            raise ArgumentError(f"{name}: {reason}; use block_size=1")
        if member.device.type == "cpu" and self.model.dtype == torch.bfloat16 and not computes_bfloat16():
            advice = f"{member.argument('dtype')}=float32 reads several tokens at once in less time, in up to twice the memory"
            logger.warning("%s is loaded in bfloat16, in which this CPU cannot compute: %s", name, advice)
        self._no_masks: list[Tensor | None] = [None] * len(self.windows)
        rotary = getattr(config.get_text_config(), "rope_parameters", None) is not None
        # A table of positions has an end. Most rotations have none.
        self._last_position = ((member.rotation_length if rotary else member.max_length) or 2**31) - 1
        self.lean = LeanDecoder(self.model) if LeanDecoder.supports(self.model) else None
        self.graphed = self.lean is not None and choose_device(member.device).type == "cuda"
        self.left_reader: Any = None  # of the last run: its graphs read its own tensors

    def __call__(
        self,
        cache: RaggedCache,
        slots: Sequence[int],
        lengths: Sequence[int],
        ids: Tensor,
        vocab: int,
        logits_at: Tensor | None = None,
    ) -> Tensor:
        """Read `ids` `[rows, new]` into these slots from their lengths on: float32 logits `[rows, new, vocab]`.

        `logits_at` `[rows]` picks one of each row's new tokens: `[rows, 1, vocab]`. With vocab 0 only the cache is filled.
        """
        new = ids.shape[1]
        plan = cache.plan = Plan(lengths, new, slots, self.member.device)
        if self.lean is not None:
            hidden = self.lean.compute_hidden(ids, self.build_masks(plan), cache)
            if logits_at is not None:
                hidden = hidden[torch.arange(len(hidden), device=plan.device), logits_at][:, None]
            return self.lean.compute_logits(hidden, vocab).contiguous().float() if vocab else hidden
        logits = self._run_transformers(cache, ids, keep=new if vocab and logits_at is None else 1)
        if logits_at is None or new == 1:
            return logits[..., :vocab].float()
        # The chosen tokens are read once more, over themselves, so that no other one needs its logits.
        chosen = ids.gather(1, logits_at[:, None])
        ends = [length + place for length, place in zip(lengths, logits_at.tolist(), strict=True)]
        return self(cache, slots, ends, chosen, vocab)

    def _run_transformers(self, cache: RaggedCache, ids: Tensor, keep: int) -> Tensor:
        """The last `keep` logits of each row by the model's own `forward`, along `cache.plan`."""
        masks: Any = self.build_masks(cache.plan, always=True)
        if len(set(self.windows)) == 1:
            mask = masks[0]
        else:  # one for each kind of layer
            sliding = next(mask for mask, window in zip(masks, self.windows, strict=True) if window is not None)
            mask = {"full_attention": masks[self.windows.index(None)], "sliding_attention": sliding}
        options = {"position_ids": cache.plan.positions.clamp(max=self._last_position), "logits_to_keep": keep}
        logits: Tensor = self.model(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **{name: value for name, value in options.items() if name in self.member.forward_arguments},
        ).logits
        return logits

    def build_masks(self, plan: Plan, *, always: bool = False) -> list[Tensor | None]:
        """One additive mask `[rows, 1, new, columns]` per layer: a query attends to its own column and those before it.

        None where every query attends to all columns, except with `always`.
        """
        sees_all = not always and plan.aligned_start is not None and plan.new == 1
        if sees_all and not any(self.windows):
            return self._no_masks
        masks: dict[int | None, Tensor | None] = {}
        for window in set(self.windows):
            if sees_all and (window is None or plan.columns <= window):
                masks[window] = None
                continue
            columns, positions = torch.arange(plan.columns, device=plan.device), plan.positions[..., None]
            hidden = columns > positions
            if window is not None:
                hidden |= columns <= positions - window
            mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=plan.device)
            masks[window] = mask.masked_fill_(hidden, -torch.inf)[:, None]
        return [masks[window] for window in self.windows]

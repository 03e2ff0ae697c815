"""What one model has read: rows with their own lengths, and forward passes over any of them."""

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lm_eval_takeover.decoding.pace import Foresight, PassCosts
from lm_eval_takeover.forward.lean_decoder import LeanDecoder
from lm_eval_takeover.forward.padding import pad_right
from lm_eval_takeover.forward.projection import computes_bfloat16
from lm_eval_takeover.forward.ragged_cache import Plan, RaggedCache, layer_windows
from lm_eval_takeover.forward.static_pass import Later, StaticPass
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw, draw_on_cpu
from lm_eval_takeover.method.scores import entropy
from lm_eval_takeover.pair.member import Member

logger = logging.getLogger(__name__)


_CHUNK = 512  # columns of a prompt that are read at a time: masks grow with their product with the length


def forward_pass(member: Member) -> "ForwardPass":
    """The pass of this model, prepared once. Raises ArgumentError for models whose rows cannot have their own lengths."""
    if member.prepared_pass is None:
        member.prepared_pass = ForwardPass(member)
    return member.prepared_pass  # type: ignore[no-any-return]


class ForwardPass:
    """One model's forward pass over a ragged cache: lean where the architecture is known, transformers' own elsewhere."""

    def __init__(self, member: Member) -> None:
        self.member, self.model = member, member.model
        config = member.model.config
        self.windows = layer_windows(config, f"{member.role}='{member.id.id}'")
        if member.device.type == "cpu" and self.model.dtype == torch.bfloat16 and not computes_bfloat16():
            logger.warning(
                "%s='%s' is loaded in bfloat16, in which this CPU cannot compute: %s=float32 reads several tokens at once "
                "in less time, in up to twice the memory",
                member.role,
                member.path,
                member.dtype_argument,
            )
        self._unlimited: list[Tensor | None] = [] if any(self.windows) else [None] * len(self.windows)
        rotated = getattr(config.get_text_config(), "rope_parameters", None) is not None
        self._last_position = 2**31 if rotated else (member.max_length or 2**31) - 1
        # What running it taught, which later runs need not learn again: seconds, and what an entropy foretold under a policy.
        self.costs = PassCosts()
        self.foresight: dict[Hashable, Foresight] = {}
        self.lean: LeanDecoder | None = None
        if LeanDecoder.supports(self.model):
            lean = LeanDecoder(self.model)
            if self._agrees(lean):
                self.lean = lean
            else:
                logger.warning("%s: the lean pass differs from transformers'; not used", member.id.id)
        # Whether tokens are read with tensors that never move, as a GPU's graphs need it.
        self.static = self.lean is not None and member.device.type == "cuda"

    @torch.inference_mode()
    def _agrees(self, lean: LeanDecoder) -> bool:
        """Whether the lean pass gives the logits of transformers' own, on a few tokens."""
        vocab = len(lean.embed)
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
        plan = cache.plan = Plan(lengths, new, slots, device)
        if self.lean is not None:
            hidden = self.lean.hidden(ids, self.masks(plan, plan.start is not None and new == 1), cache)
            if only is not None:
                hidden = hidden[torch.arange(len(hidden), device=device), only][:, None]
            return self.lean.logits(hidden, vocab).contiguous().float() if vocab else hidden
        # Where positions are rows of a table, padding must not point behind its end.
        positions = plan.places.clamp(max=self._last_position)
        options: dict[str, Any] = {"position_ids": positions, "logits_to_keep": new if vocab and only is None else 1}
        output = self.model(
            input_ids=ids,
            attention_mask=self._as_transformers(self.masks(plan)),
            past_key_values=cache,
            use_cache=True,
            **{name: value for name, value in options.items() if name in self.member.forward_arguments},
        )
        if only is None or new == 1:
            return output.logits[..., :vocab].float()  # type: ignore[no-any-return]
        # The chosen tokens are read once more, over themselves, so that no other one needs its logits.
        chosen = ids.gather(1, only[:, None])
        ends = [length + column for length, column in zip(lengths, only.tolist(), strict=True)]
        return self(cache, slots, ends, chosen, vocab)

    def masks(self, plan: Plan, sees_all: bool = False) -> list[Tensor | None]:
        """One additive mask `[rows, 1, new, columns]` per layer: a query sees its own column and those before it."""
        if sees_all and self._unlimited:
            return self._unlimited
        made: dict[int | None, Tensor | None] = {}
        for window in set(self.windows):
            if sees_all and (window is None or plan.columns <= window):
                made[window] = None
                continue
            column, places = torch.arange(plan.columns, device=plan.device), plan.places[..., None]
            hidden = column > places
            if window is not None:
                hidden |= column <= places - window
            mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=plan.device)
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


@dataclass(slots=True)
class Drafted:
    """One drafted token per row: logits `[rows, vocab]`, tokens `[rows]`, and their companions, perhaps still on their way."""

    logits: Tensor
    tokens: Tensor
    later: Later | tuple[list[int], list[bool], list[float]]

    def known(self) -> tuple[list[int], list[bool], list[float]]:
        """Tokens, whether each is the one that is drawn (or more must be sorted), host entropies in nats."""
        if isinstance(self.later, tuple):
            return self.later
        tokens, sure, entropies = self.later.lists()
        return list(map(int, tokens)), list(map(bool, sure)), entropies


class Reader:
    """The rows of one model in their slots. `lengths[slot]` is how many tokens a row has read; less of it is a roll-back."""

    def __init__(self, forward: ForwardPass, slots: int, vocab: int, *, static: bool = True) -> None:
        self.forward, self.vocab = forward, vocab
        self.cache = RaggedCache(len(forward.windows), slots)
        self.lengths = [0] * slots
        self._static = StaticPass(forward, self.cache, vocab) if static and forward.static else None

    @property
    def ahead(self) -> int:
        """Drafted tokens that are on their way while the next one is asked for."""
        return 0 if self._static is None else 1

    @property
    def device(self) -> torch.device:
        return self.forward.member.device

    def read(self, slots: Sequence[int], ids: Tensor, ahead: int = 0) -> Tensor:
        """Logits `[rows, new, vocab]` after each of `ids` `[rows, new]`, read `ahead` tokens behind each row's length.

        Lengths stay as they are: what was read counts once the caller adds it.
        """
        if self._static is not None and self._static.takes(ids):
            return self._static.logits(self.lengths, slots, ids.to(self.device), ahead)
        lengths = [self.lengths[slot] + ahead for slot in slots]
        return self.forward(self.cache, slots, lengths, ids.to(self.device), self.vocab)

    def draft(self, slots: Sequence[int], ids: Tensor, ahead: int, uniform: Tensor, sampling: Sampling) -> Drafted:
        """Read one token per row, `ids` `[rows, 1]`, and draw the next with `uniform` `[rows]`. To be called under `quiet()`."""
        if self._static is not None and self._static.takes(ids):
            return Drafted(*self._static.drafted(self.lengths, slots, ids, ahead, uniform, sampling))
        logits = self.read(slots, ids, ahead).select(1, 0)
        sure = [True] * len(slots)
        if logits.device.type == "cpu":
            drawn, entropies = draw_on_cpu(logits.numpy(), uniform.numpy(), sampling, entropy=True)
            return Drafted(logits, torch.from_numpy(drawn), (drawn.tolist(), sure, entropies))
        tokens = draw(logits, uniform, sampling)
        return Drafted(logits, tokens, (tokens.tolist(), sure, entropy(logits).tolist()))

    @property
    def captures(self) -> int:
        """CUDA graphs captured so far."""
        return 0 if self._static is None else self._static.graphs.captures

    def was_sure(self, sure: bool) -> None:
        """Whether a drafted token could be known from the head of its distribution."""
        if self._static is not None:
            self._static.was_sure(sure)

    def read_to_last(self, slots: Sequence[int], ids: Tensor, counts: Sequence[int]) -> Tensor:
        """Logits `[rows, vocab]` after the last of `counts` tokens of each row of `ids`, padded behind."""
        if ids.shape[1] == 1:
            return self.read(slots, ids)[:, 0]
        only = torch.tensor(counts, device=self.device) - 1
        if self._static is not None and self._static.takes(ids):
            return self._static.logits(self.lengths, slots, ids.to(self.device), 0, only)[:, 0]
        lengths = [self.lengths[slot] for slot in slots]
        return self.forward(self.cache, slots, lengths, ids.to(self.device), self.vocab, only)[:, 0]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> "Reader":
        """A reader that has read these prompts, one a row."""
        made = Reader(self.forward, len(prompts), self.vocab, static=False)
        ids = pad_right(prompts, self.device)
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

"""The policies, each in one place.

disagreement   the donor, where the gate fires on any score but the entropy          eq. (5), (6)
entropy        the donor, where the same gate fires on H(host)                       appendix C.3
random         the donor, at each position with probability `rate`                   appendix C.4
early          the donor, for the first tokens only                                  appendix C.4
base, guide    one model alone
segment        the donor, for several tokens from where the gate fires
lossy          the donor, where it refuses the host's token by chance
ensemble       every token from a mix of both distributions
"""

import math
import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.gate import Gate, fires_ahead
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.policy import Block, BudgetParameter, Policy, register_policy
from lm_eval_takeover.method.registry import Score, scores

_PAIRED = "policy=entropy goes with score=entropy, policy=disagreement with any other"


@dataclass(frozen=True, kw_only=True)
class Gated(Policy):
    """The donor writes where the gate fires on a score: equations (5) and (6). `score_top_p` is read by `js`."""

    score: str = "ce"
    gate: Gate | None = None
    score_top_p: float = 1.0
    chance: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        reads_top_p = self.scorer.reads_top_p  # raises where no such score is registered
        if not 0 <= self.chance <= 1:
            raise ArgumentError(f"chance={self.chance} is outside 0..1, a probability")
        if self.gate is not None and not self.scorer.signed and self.gate.tau < 0:
            raise ArgumentError(f"tau={self.gate.tau} is not a number of at least 0, as every score={self.score} is")
        if self.gate is not None and self.scorer.signed and self.gate.kappa:
            raise ArgumentError(f"kappa={self.gate.kappa} needs scores above 0, not score={self.score}; give kappa=0")
        if not 0 < self.score_top_p <= 1:
            raise ArgumentError(f"score_top_p={self.score_top_p} is outside (0, 1]")
        if self.score_top_p != 1 and not reads_top_p:
            raise ArgumentError(f"score_top_p={self.score_top_p} is read by score=js, not {self.score}")

    @property
    def scorer(self) -> Score:
        return scores.get(self.score)

    @property
    def budget_parameter(self) -> BudgetParameter:
        return BudgetParameter("chance") if self.scorer.binary else BudgetParameter("spike_ratio", 0.001, 0.5)

    @property
    def uses_chance(self) -> bool:
        return self.chance < 1

    def settings(self) -> dict[str, Any]:
        """`chance` where it changes anything: so keys of samples and reports of runs without it stay as they are."""
        settings = super().settings()
        return settings if self.uses_chance else {name: value for name, value in settings.items() if name != "chance"}

    def scores(self, host_logits: Tensor | None, donor_logits: Tensor | None, tokens: Tensor | None = None) -> Tensor:
        assert host_logits is not None
        return self.scorer(host_logits, donor_logits, tokens, top_p=self.score_top_p)

    def takes_over(self, block: Block) -> Tensor:
        assert self.gate is not None
        fires = fires_ahead(self.gate, block.scores, block.window, block.positions[..., 0])
        return fires & (block.chance < self.chance) if self.uses_chance and block.chance is not None else fires


@register_policy("disagreement")
@dataclass(frozen=True, kw_only=True)
class Disagreement(Gated):
    """The paper's method: the gate on a score of how far host and donor disagree."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.score == Entropy.score) != isinstance(self, Entropy):
            raise ArgumentError(f"policy={self.name} with score={self.score}: {_PAIRED}")


@register_policy("entropy")
@dataclass(frozen=True, kw_only=True)
class Entropy(Disagreement):
    """The same gate on the host's own uncertainty: the donor runs only where it fires."""

    score: str = "entropy"


def _check_rate(rate: float | None) -> None:
    if rate is not None and not 0 <= rate <= 1:
        raise ArgumentError(f"rate={rate} is outside 0..1: it is the share of tokens to take over; for 5 % give 0.05")


@register_policy("random")
@dataclass(frozen=True, kw_only=True)
class Random(Policy):
    """Each position independently with probability `rate`."""

    uses_chance = True
    budget_parameter = BudgetParameter("rate")

    rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rate(self.rate)
        if self.rate is None:
            raise ArgumentError("policy=random needs rate=…, the share of tokens that the guide writes, in 0..1")

    def takes_over(self, block: Block) -> Tensor:
        assert block.chance is not None and self.rate is not None
        return block.chance < self.rate


@register_policy("early")
@dataclass(frozen=True, kw_only=True)
class Early(Policy):
    """The first `early_tokens` tokens, or `round(rate * n)` where `n` is the length of the donor's own answer."""

    budget_parameter = BudgetParameter("rate")

    rate: float | None = None
    early_tokens: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rate(self.rate)
        if self.early_tokens is not None and self.early_tokens < 0:
            raise ArgumentError(f"early_tokens={self.early_tokens} is negative")
        if (self.rate is None) == (self.early_tokens is None):
            raise ArgumentError("policy=early needs either rate=… (in 0..1) or early_tokens=…")

    @property
    def needs_donor_length(self) -> bool:
        return self.early_tokens is None

    def takes_over(self, block: Block) -> Tensor:
        if self.early_tokens is not None:
            return block.positions < self.early_tokens
        assert block.donor_length is not None and self.rate is not None
        # Rounded half to even, as Python's round.
        return block.positions < (self.rate * block.donor_length.double()).round()[:, None]


@register_policy("base")
@dataclass(frozen=True, kw_only=True)
class BaseAlone(Policy):
    """The base writes everything."""

    models = ("base",)
    host, donor = "base", None

    def takes_over(self, block: Block) -> Tensor:
        return torch.zeros_like(block.positions, dtype=torch.bool)


@register_policy("guide")
@dataclass(frozen=True, kw_only=True)
class GuideAlone(Policy):
    """The guide writes everything: every token is its takeover."""

    models = ("guide",)
    host, donor = None, "guide"

    def takes_over(self, block: Block) -> Tensor:
        return torch.ones_like(block.positions, dtype=torch.bool)


# Of other papers


@register_policy("segment")
@dataclass(frozen=True, kw_only=True)
class Segment(Gated):
    """Where the gate fires, the donor writes that token and the next ones (as in arXiv 2601.05110 and 2602.05307)."""

    reads_text = True

    #: Tokens of a segment, the one where the gate fires included, or `sentence`: until a token that ends one.
    length: int | str = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length != "sentence" and (isinstance(self.length, str) or self.length < 1):
            raise ArgumentError(f"length={self.length} is neither 'sentence' nor a whole number of at least 1")

    @property
    def needs_token(self) -> bool:
        return True

    @property
    def redraws(self) -> bool:  # the end of a sentence is seen in the tokens before
        return self.scorer.needs_token

    def takes_over(self, block: Block) -> Tensor:
        assert block.written is not None and block.tokens is not None
        rows = zip(super().takes_over(block).tolist(), block.tokens.tolist(), block.written, strict=True)
        taken = [self._follow(fires, tokens, before, block.tokenizer) for fires, tokens, before in rows]
        return torch.tensor(taken, dtype=torch.bool, device=block.positions.device).view(block.positions.shape)

    def _follow(self, fires: list[bool], tokens: list[int], before: Generation, tokenizer: Any) -> list[bool]:
        """Whether the donor writes each position of one row; `written` counts the tokens of a segment that goes on."""
        written = len(list(takewhile(bool, reversed(before.taken_over))))
        if self.length == "sentence":
            written = int(written > 0 and not _ends_sentence(before.tokens[-1], tokenizer))
        else:  # segments that follow each other without a gap are whole ones
            written %= int(self.length)
        taken = []
        for fire, token in zip(fires, tokens, strict=True):
            taken.append(fire or written > 0)
            ends = _ends_sentence(token, tokenizer) if self.length == "sentence" else written + 1 == self.length
            written = 0 if ends or not taken[-1] else written + 1
        return taken


_END_OF_SENTENCE = re.compile(r"""[.!?…。！？]["'”’)\]]*\s*$|\n""")


def _ends_sentence(token: int, tokenizer: Any) -> bool:
    """Whether the text of a token ends with a sentence, or has a line break."""
    return _END_OF_SENTENCE.search(tokenizer.decode([token])) is not None


@register_policy("lossy")
@dataclass(frozen=True, kw_only=True)
class Lossy(Policy):
    """The host's token `x` is refused with probability `max(0, 1 - leniency q(x) / p(x))`, and the donor writes there.

    Speculative sampling with lenience (Leviathan et al., arXiv 2211.17192, appendix A.5, whose `l` is 1 / `leniency`). By default
    the donor draws from its whole distribution, so it is not lossless at leniency 1. With `residual` it draws from theirs,
    `max(0, q - p)`: lossless at leniency 1 with temperature 1 and no top-p or top-k.
    """

    uses_chance = True
    budget_parameter = BudgetParameter("leniency", 0.0, math.inf, rising=False)

    #: The larger, the more of the host's tokens stand; 1 is the test of speculative sampling.
    leniency: float = 1.0
    #: Whether takeovers are drawn from speculative sampling's residual, `max(0, q - p)`; false: from the donor's distribution.
    residual: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.leniency >= 0:
            raise ArgumentError(f"leniency={self.leniency} is not a number of at least 0")

    @property
    def scorer(self) -> Score:
        return scores.get("log_ratio")

    def takes_over(self, block: Block) -> Tensor:
        assert block.chance is not None
        return block.chance < 1 - self.leniency * (-block.scores.double()).exp()

    def settings(self) -> dict[str, Any]:
        """`residual` where it is set, as `chance` of a gate."""
        return {name: value for name, value in super().settings().items() if name != "residual" or value}

    @property
    def mixes(self) -> bool:
        return self.residual

    def mix(self, host_logits: Tensor, donor_logits: Tensor) -> Tensor:
        if not self.residual:
            return donor_logits
        p, q = host_logits.float().softmax(-1), donor_logits.float().softmax(-1)
        left = (q - p).clamp(min=0)  # nothing where both models agree, where a leniency below 1 may still refuse
        return left.where(left.sum(-1, keepdim=True) > 0, q).log()


@register_policy("ensemble")
@dataclass(frozen=True, kw_only=True)
class Ensemble(Policy):
    """Every token from the softmax of `(1 - weight) log p + weight log q`, as in proxy tuning (arXiv 2401.08565)."""

    budget_parameter = BudgetParameter("weight")

    #: Of the donor: 0 is the host alone, 1 the donor alone.
    weight: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.weight <= 1:
            raise ArgumentError(f"weight={self.weight} is outside 0..1, the donor's share of the mix")

    def takes_over(self, block: Block) -> Tensor:
        return torch.ones_like(block.positions, dtype=torch.bool)

    def mix(self, host_logits: Tensor, donor_logits: Tensor) -> Tensor:
        if self.weight in (0, 1):  # 0 times -inf is no number
            return donor_logits if self.weight else host_logits
        return (1 - self.weight) * host_logits + self.weight * donor_logits


ALONE: dict[str, type[Policy]] = {"base": BaseAlone, "guide": GuideAlone}

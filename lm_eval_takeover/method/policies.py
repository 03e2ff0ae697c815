"""The scores and policies of the paper, each in one place. Those of other papers are in `lab/methods.py`.

A score is a function of a `PairReading` of raw logits (temperature 1, no top-p; finite or -inf), in float32, in nats `[...]`.
Scores of one reading share its numbers. Host `p` writes by default, donor `q` takes over.

ce             -sum_v p(v) log q(v)                                                  eq. (2), the paper's default
rkl            ce - H(p) = KL(p || q)                                                appendix C.1
entropy        H(p), needs no donor                                                  appendix C.3
js             Jensen-Shannon divergence, bounded by ln 2

disagreement   the donor, where the gate fires on any score but the entropy          eq. (5), (6)
entropy        the donor, where the same gate fires on H(host)                       appendix C.3
random         the donor, at each position with probability `rate`                   appendix C.4
early          the donor, for the first tokens only                                  appendix C.4
base, guide    one model alone
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.gate import Gate, fires_ahead
from lm_eval_takeover.method.policy import Block, BudgetParameter, Policy, register_policy
from lm_eval_takeover.method.reading import PairReading
from lm_eval_takeover.method.registry import Score, register_score, scores


@register_score("ce", needs_donor=True)
def cross_entropy(reading: PairReading) -> Tensor:
    """`-sum_v p(v) log q(v)`, equation (2)."""
    return reading.ce


@register_score("rkl", needs_donor=True)
def reverse_kl(reading: PairReading) -> Tensor:
    """`KL(p || q) = ce - H(p)`."""
    return reading.rkl


@register_score("entropy", needs_donor=False)
def entropy(reading: PairReading) -> Tensor:
    """Shannon entropy `H(p)`."""
    return reading.host.entropy


@register_score("js", needs_donor=True)
def jensen_shannon(reading: PairReading, top_p: float = 1.0) -> Tensor:
    """The Jensen-Shannon divergence. `top_p < 1`: of both nuclei ('Sparse but Critical')."""
    return reading.js if top_p >= 1 else reading.in_nuclei(top_p).js


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

    #: Tokens of thinking after which the end tag, such as `</think>`, is written. None: any number
    thinking_budget: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.thinking_budget is not None and self.thinking_budget < 0:
            raise ArgumentError(f"thinking_budget={self.thinking_budget} is negative; expected a number of tokens")

    def settings(self) -> dict[str, Any]:
        """The budget where there is one: so keys of samples without it stay as they are."""
        return {name: value for name, value in super().settings().items() if value is not None}

    def takes_over(self, block: Block) -> Tensor:
        return torch.ones_like(block.positions, dtype=torch.bool)


ALONE: dict[str, type[Policy]] = {"base": BaseAlone, "guide": GuideAlone}

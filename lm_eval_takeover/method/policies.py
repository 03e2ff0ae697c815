"""Policies: who may write token t.

disagreement   the donor, where the gate fires on ce, rkl or js      eq. (5), (6)
entropy        the donor, where the same gate fires on H(host)       appendix C.3
random         the donor, at each position with probability `rate`   appendix C.4
early          the donor, for the first tokens only                  appendix C.4
base, guide    one model alone
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.method.gate import Gate, fires, fires_along
from lm_eval_takeover.method.scores import SCORES, disagreement

POLICIES = ("disagreement", "entropy", "random", "early", "base", "guide")
DIRECTIONS = ("forward", "reverse")


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with all that it needs; fields that it does not read keep their defaults.

    `early` writes `early_tokens` tokens, or `round(rate * n)` where `n` is the length of the donor's own answer.
    """

    name: str = "disagreement"
    direction: str = "forward"
    score: str = "ce"
    gate: Gate | None = None
    rate: float | None = None
    early_tokens: int | None = None
    score_top_p: float = 1.0

    def __post_init__(self) -> None:
        for argument, value, known in (
            ("policy", self.name, POLICIES),
            ("direction", self.direction, DIRECTIONS),
            ("score", self.score, SCORES),
        ):
            if value not in known:
                raise ArgumentError(f"{argument}='{value}' is not known; {nearest(str(value), known)}")
        if (self.name == "entropy") != (self.score == "entropy") and self.gated:
            raise ArgumentError(
                f"policy={self.name} with score={self.score}: policy=entropy goes with score=entropy, "
                "policy=disagreement with ce, rkl or js"
            )
        if self.rate is not None and not 0 <= self.rate <= 1:
            raise ArgumentError(f"rate={self.rate} is outside 0..1, the share of tokens that the donor writes")
        if self.early_tokens is not None and self.early_tokens < 0:
            raise ArgumentError(f"early_tokens={self.early_tokens} is negative")
        if self.name == "random" and self.rate is None:
            raise ArgumentError("policy=random needs rate=…, the share of tokens that the guide writes, in 0..1")
        if self.name == "early" and (self.rate is None) == (self.early_tokens is None):
            raise ArgumentError("policy=early needs either rate=… (in 0..1) or early_tokens=…")
        if not 0 < self.score_top_p <= 1:
            raise ArgumentError(f"score_top_p={self.score_top_p} is outside (0, 1]")
        if self.score_top_p != 1 and self.score != "js":
            raise ArgumentError(f"score_top_p={self.score_top_p} is read by score=js, not {self.score}")

    @property
    def gated(self) -> bool:
        return self.name in ("disagreement", "entropy")

    @property
    def host(self) -> str | None:
        """The role that writes by default; None if the donor writes everything."""
        if self.name in ("base", "guide"):
            return "base" if self.name == "base" else None
        return "base" if self.direction == "forward" else "guide"

    @property
    def donor(self) -> str | None:
        """The role that takes over; None if nobody ever does."""
        if self.name in ("base", "guide"):
            return "guide" if self.name == "guide" else None
        return "guide" if self.direction == "forward" else "base"

    @property
    def roles(self) -> tuple[str, ...]:
        """The models that this policy asks."""
        return tuple(role for role in (self.host, self.donor) if role is not None)

    def writes(self, taken_over: bool) -> str:
        """The role that writes a token, given whether it is a takeover."""
        role = (self.donor or self.host) if taken_over else (self.host or self.donor)
        assert role is not None
        return role

    def scores(self, host_logits: Tensor | None, donor_logits: Tensor | None) -> Tensor:
        """`s_t` for logits `[..., vocab]`: `[...]` in nats, NaN where this policy asks for no score."""
        logits = host_logits if host_logits is not None else donor_logits
        assert logits is not None
        if not self.gated or host_logits is None:
            return torch.full(logits.shape[:-1], math.nan, device=logits.device)
        return disagreement(self.score, host_logits, donor_logits, self.score_top_p)

    def takes_over(self, position: int, score: Tensor, recent: Tensor, chance: Tensor, early: Tensor) -> Tensor:
        """Whether the donor writes at `position`: bool `[rows]`.

        score `[rows]` and recent `[rows, window]` go to the gate; chance `[rows]` is this position's uniform number of
        the `random` policy; early `[rows]` is how many tokens `early` gives to the donor.
        """
        match self.name:
            case "disagreement" | "entropy":
                assert self.gate is not None
                return fires(self.gate, score, recent, position)
            case "random":
                assert self.rate is not None
                return chance < self.rate
            case "early":
                return early > position
        return torch.full_like(score, self.name == "guide", dtype=torch.bool)

    def takes_over_along(self, scores: Tensor, chances: Tensor, early: int) -> Tensor:
        """The same for every position of one given text: scores and chances `[tokens]` to bool `[tokens]`."""
        match self.name:
            case "disagreement" | "entropy":
                assert self.gate is not None
                return fires_along(self.gate, scores)
            case "random":
                assert self.rate is not None
                return chances < self.rate
            case "early":
                return torch.arange(len(scores), device=scores.device) < early
        return torch.full_like(scores, self.name == "guide", dtype=torch.bool)

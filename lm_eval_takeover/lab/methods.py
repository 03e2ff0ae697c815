"""Scores and policies of other papers, registered as a stranger's plug-in is: by the entry points in pyproject.toml.

Host `p` writes by default, donor `q` takes over, and `x` is the token that the host draws. Scores are in nats, or shares.
"""

import math
import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from lm_eval_takeover import BudgetParameter, Policy, register_policy, register_score
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policies import Gated
from lm_eval_takeover.method.policy import Block
from lm_eval_takeover.method.reading import PairReading
from lm_eval_takeover.method.registry import Score, scores
from lm_eval_takeover.method.request import Generation


@register_score("margin", needs_donor=False)
def margin(reading: PairReading) -> Tensor:
    """`1 - (p_1 - p_2)` of the two likeliest tokens: the margin of Scheffer et al. (2001), by which cascades hand over."""
    return (reading.host.rest + reading.host.second) / (1 + reading.host.rest)


@register_score("confidence", needs_donor=False)
def confidence(reading: PairReading) -> Tensor:
    """`1 - max p`: the small model's confidence, as in BiLD (arXiv 2302.07863) and R-Stitch (arXiv 2507.17307)."""
    return reading.host.rest / (1 + reading.host.rest)


@register_score("top1", needs_donor=True, binary=True)
def top1(reading: PairReading) -> Tensor:
    """1 where the likeliest tokens differ, else 0: a divergent token of R2R (arXiv 2505.21600)."""
    undefined = (reading.host.rest + reading.donor.rest).isnan()
    return torch.where(undefined, torch.nan, (reading.host.top != reading.donor.top).float())


@register_score("surprise", needs_donor=True, needs_token=True)
def surprise(reading: PairReading) -> Tensor:
    """`-log q(x)`: `ce` estimated by one sample, and the test of typical acceptance (Medusa, arXiv 2401.10774)."""
    return torch.where(reading.host.rest.isnan(), torch.nan, -reading.donor.logprob)


@register_score("log_ratio", needs_donor=True, needs_token=True, signed=True)
def log_ratio(reading: PairReading) -> Tensor:
    """`log p(x) - log q(x)`, the signed log-probability difference of arXiv 2603.22117 with its sign turned."""
    return reading.host.logprob - reading.donor.logprob


@register_policy("segment")
@dataclass(frozen=True, kw_only=True)
class Segment(Gated):
    """Where the gate fires, the donor writes that token and the next ones (as in arXiv 2601.05110 and 2602.05307)."""

    reads_text = needs_token = True

    #: Tokens of a segment, the one where the gate fires included, or `sentence`: until a token that ends one.
    length: int | str = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length != "sentence" and (isinstance(self.length, str) or self.length < 1):
            raise ArgumentError(f"length={self.length} is neither 'sentence' nor a whole number of at least 1")

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

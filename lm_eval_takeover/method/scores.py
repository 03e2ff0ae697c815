"""The scores: equations (1) and (2) of the paper, and what other papers route tokens by.

Each is a function of a `PairReading` of raw logits (temperature 1, no top-p; finite or -inf), in float32, in nats or shares
`[...]`. Scores of one reading share its numbers. Host `p` writes by default, donor `q` takes over, and `x` is the token that the
host draws.

    ce          -sum_v p(v) log q(v)          eq. (2), the paper's default
    rkl         ce - H(p) = KL(p || q)        appendix C.1
    entropy     H(p)                          appendix C.3, needs no donor
    js          Jensen-Shannon divergence     bounded by ln 2
    margin      1 - (p_1 - p_2)               of the two likeliest tokens; needs no donor
    confidence  1 - p_1                       needs no donor
    top1        argmax p != argmax q          0 or 1
    surprise    -log q(x)
    log_ratio   log p(x) - log q(x)           of either sign
"""

import torch
from torch import Tensor

from lm_eval_takeover.method.reading import PairReading
from lm_eval_takeover.method.registry import register_score


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

"""The scores of the paper: equations (1) and (2). Those of other papers are in `lab/methods.py`.

Each is a function of a `PairReading` of raw logits (temperature 1, no top-p; finite or -inf), in float32, in nats `[...]`.
Scores of one reading share its numbers. Host `p` writes by default, donor `q` takes over.

    ce          -sum_v p(v) log q(v)          eq. (2), the paper's default
    rkl         ce - H(p) = KL(p || q)        appendix C.1
    entropy     H(p)                          appendix C.3, needs no donor
    js          Jensen-Shannon divergence     bounded by ln 2
"""

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

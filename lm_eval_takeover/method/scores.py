"""The scores: equations (1) and (2) of the paper, and what other papers route tokens by.

Pure functions on logits. Every function takes raw logits `[..., vocab]` (temperature 1, no top-p; finite or -inf), works
in float32 and returns scores `[...]` in nats, or shares. Host `p` writes by default, donor `q` takes over, and `x` is the token
that the host draws.

    ce          -sum_v p(v) log q(v)          eq. (2), the paper's default
    rkl         ce - H(p) = KL(p || q)        appendix C.1
    entropy     H(p)                          appendix C.3, needs no donor
    js          Jensen-Shannon divergence     bounded by ln 2
    margin      1 - (p_1 - p_2)               of the two likeliest tokens; needs no donor
    confidence  1 - p_1                       needs no donor
    top1        argmax p != argmax q          0 or 1
    surprise    -log q(x)
    log_ratio   log p(x) - log q(x)           of either sign

On a GPU a kernel reads the logits once and gives all of them, but for js of a nucleus.
"""

import math

import torch
from torch import Tensor

from lm_eval_takeover.kernels import operations as kernels
from lm_eval_takeover.method.registry import register_score

JS_MAX = 0.69314712  # the float32 just below ln 2; the nearest one lies above it


def log_probs(logits: Tensor) -> Tensor:
    """Float32 log-softmax `[..., vocab]` over the last dimension."""
    return logits.float().log_softmax(-1)


def _expectation(p: Tensor, values: Tensor) -> Tensor:
    """E_p[values], where 0 log 0 is 0. NaN where the logits of p are no distribution: NaN, +inf, or -inf everywhere."""
    if p.device.type == "cpu":  # one pass over the vocabulary instead of four, where nothing is infinite
        product: Tensor = torch.linalg.vecdot(p, values)
        if bool(product.isfinite().all()):
            return product
    return torch.where(p == 0, 0.0, p * values).sum(-1)


@register_score("ce", needs_donor=True)
def cross_entropy(host_logits: Tensor, donor_logits: Tensor) -> Tensor:
    """`-sum_v p(v) log q(v)`, equation (2); infinite where the donor rules out a token that the host may write."""
    if kernels.uses_kernels(host_logits):
        return kernels.read_pair(host_logits, donor_logits).ce
    p = host_logits.float().softmax(-1)
    return -_expectation(p, log_probs(donor_logits))


@register_score("rkl", needs_donor=True)
def reverse_kl(host_logits: Tensor, donor_logits: Tensor) -> Tensor:
    """`KL(p || q) = ce - H(p)`, summed term by term so that nearly equal models do not cancel to noise."""
    if kernels.uses_kernels(host_logits):
        return kernels.read_pair(host_logits, donor_logits).rkl
    log_p = log_probs(host_logits)
    return _expectation(log_p.exp(), log_p - log_probs(donor_logits)).clamp(min=0.0)


@register_score("entropy", needs_donor=False)
def entropy(host_logits: Tensor) -> Tensor:
    """Shannon entropy `H(p)`."""
    if kernels.uses_kernels(host_logits):
        return kernels.read_pair(host_logits).host.entropy
    log_p = log_probs(host_logits)
    return (-_expectation(log_p.exp(), log_p)).clamp(min=0.0)


@register_score("js", needs_donor=True)
def jensen_shannon(host_logits: Tensor, donor_logits: Tensor, top_p: float = 1.0) -> Tensor:
    """`KL(p || m) / 2 + KL(q || m) / 2`, `m = (p + q) / 2`: at most ln 2. `top_p < 1`: of both nuclei ('Sparse but Critical')."""
    if kernels.uses_kernels(host_logits) and top_p == 1:
        return kernels.jensen_shannon(host_logits, donor_logits).clamp(min=0.0, max=JS_MAX)
    log_p, log_q = log_probs(_nucleus(host_logits, top_p)), log_probs(_nucleus(donor_logits, top_p))
    log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
    value = (_expectation(log_p.exp(), log_p - log_m) + _expectation(log_q.exp(), log_q - log_m)) / 2
    value = _nan_where_undefined(_nan_where_undefined(value, host_logits), donor_logits)
    return value.clamp(min=0.0, max=JS_MAX)


@register_score("margin", needs_donor=False)
def margin(host_logits: Tensor) -> Tensor:
    """`1 - (p_1 - p_2)` of the two likeliest tokens: the margin of Scheffer et al. (2001), by which cascades hand over."""
    if kernels.uses_kernels(host_logits):
        host = kernels.read_pair(host_logits).host
        return (host.rest + host.second) / (1 + host.rest)
    shifted, rest = _weigh(host_logits)
    second = shifted.topk(2).values[..., 1].exp()
    return _nan_where_undefined((rest + second) / (1 + rest), host_logits)


@register_score("confidence", needs_donor=False)
def confidence(host_logits: Tensor) -> Tensor:
    """`1 - max p`: the small model's confidence, as in BiLD (arXiv 2302.07863) and R-Stitch (arXiv 2507.17307)."""
    rest = kernels.read_pair(host_logits).host.rest if kernels.uses_kernels(host_logits) else _weigh(host_logits)[1]
    return _nan_where_undefined(rest / (1 + rest), host_logits)


@register_score("top1", needs_donor=True, binary=True)
def top1(host_logits: Tensor, donor_logits: Tensor) -> Tensor:
    """1 where the likeliest tokens differ, else 0: a divergent token of R2R (arXiv 2505.21600)."""
    if kernels.uses_kernels(host_logits):
        _, _, host, donor = kernels.read_pair(host_logits, donor_logits)
        return torch.where((host.rest + donor.rest).isnan(), torch.nan, (host.top != donor.top).float())
    differ = (host_logits.argmax(-1) != donor_logits.argmax(-1)).float()
    return _nan_where_undefined(_nan_where_undefined(differ, host_logits), donor_logits)


@register_score("surprise", needs_donor=True, needs_token=True)
def surprise(host_logits: Tensor, donor_logits: Tensor, tokens: Tensor) -> Tensor:
    """`-log q(x)`: `ce` estimated by one sample, and the test of typical acceptance (Medusa, arXiv 2401.10774)."""
    if kernels.uses_kernels(host_logits):
        _, _, host, donor = kernels.read_pair(host_logits, donor_logits, tokens)
        return torch.where(host.rest.isnan(), torch.nan, -donor.logprob)
    return _nan_where_undefined(_surprisal(donor_logits, tokens), host_logits)


@register_score("log_ratio", needs_donor=True, needs_token=True, signed=True)
def log_ratio(host_logits: Tensor, donor_logits: Tensor, tokens: Tensor) -> Tensor:
    """`log p(x) - log q(x)`, the signed log-probability difference of arXiv 2603.22117 with its sign turned."""
    if kernels.uses_kernels(host_logits):
        _, _, host, donor = kernels.read_pair(host_logits, donor_logits, tokens)
        return host.logprob - donor.logprob
    return _surprisal(donor_logits, tokens) - _surprisal(host_logits, tokens)


def _weigh(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits minus their maximum, and the weight of all but the likeliest token in its units `[...]`: exact near 1."""
    shifted = logits.float() - logits.float().amax(-1, keepdim=True)
    return shifted, shifted.exp().scatter(-1, shifted.argmax(-1, keepdim=True), 0.0).sum(-1)


def _surprisal(logits: Tensor, tokens: Tensor) -> Tensor:
    """`-log p` of tokens `[...]`."""
    shifted, rest = _weigh(logits)
    return _nan_where_undefined(rest.log1p() - shifted.gather(-1, tokens[..., None])[..., 0], logits)


def _nan_where_undefined(value: Tensor, logits: Tensor) -> Tensor:
    """Logits that are no distribution (NaN, +inf, -inf everywhere) give NaN, which `p > 0` alone would hide."""
    return torch.where(logits.amax(-1).isfinite(), value, torch.nan)


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    if top_p >= 1.0:
        return logits
    ordered, index = logits.float().sort(dim=-1, descending=True, stable=True)
    p = ordered.softmax(-1)
    outside = p.cumsum(-1) - p >= top_p  # the mass before this token already reaches top_p
    return ordered.masked_fill(outside, -torch.inf).scatter(-1, index, ordered.masked_fill(outside, -torch.inf))

"""What scores and traces read off logits: each number is computed once, when it is first asked for."""

import math
from functools import cached_property

import torch
from torch import Tensor

from lm_eval_takeover.kernels import operations as kernels
from lm_eval_takeover.kernels.operations import ModelRead
from lm_eval_takeover.method.request import OBSERVED

JS_MAX = 0.69314712  # the float32 just below ln 2; the nearest one lies above it


def gather(values: Tensor, tokens: Tensor) -> Tensor:
    """The values `[...]` of tokens `[...]` in `[..., vocab]`."""
    return values.gather(-1, tokens[..., None])[..., 0]


def expectation(p: Tensor, values: Tensor) -> Tensor:
    """E_p[values], where 0 log 0 is 0. NaN where the logits of p are no distribution: NaN, +inf, or -inf everywhere."""
    product: Tensor = torch.linalg.vecdot(p, values)
    if p.device.type == "cpu" and bool(product.isfinite().all()):
        return product  # one pass over the vocabulary instead of four
    return torch.where(product.isfinite(), product, torch.where(p == 0, 0.0, p * values).sum(-1))


class Distribution:
    """One model's distribution `p`, as `kernels.ModelRead` describes its numbers: float32 `[...]`, of logits `[..., vocab]`.

    Logits that are no distribution (NaN, +inf, or -inf everywhere) give NaN; `top` and `rank` are arbitrary then.
    """

    def __init__(self, logits: Tensor, tokens: Tensor | None = None) -> None:
        self.logits, self.tokens = logits.float(), tokens

    @cached_property
    def log_probs(self) -> Tensor:
        return self.logits.log_softmax(-1)

    @cached_property
    def probs(self) -> Tensor:
        return self.logits.softmax(-1)

    @cached_property
    def entropy(self) -> Tensor:
        return (-expectation(self.probs, self.log_probs)).clamp(min=0.0)

    @cached_property
    def top(self) -> Tensor:
        return self.logits.argmax(-1)

    @cached_property
    def _others(self) -> Tensor:
        """Probabilities `[..., vocab]` of all but the likeliest token."""
        return self.probs.scatter(-1, self.top[..., None], 0.0)

    @cached_property
    def rest(self) -> Tensor:
        """Exact where the likeliest token is all but certain."""
        return self._others.sum(-1) / gather(self.probs, self.top)

    @cached_property
    def second(self) -> Tensor:
        return self._others.amax(-1) / gather(self.probs, self.top)

    @cached_property
    def logprob(self) -> Tensor:
        """Of the given token; relative to it, not to 1."""
        if self.tokens is None:
            return self.rest * math.nan
        return gather(self.logits, self.tokens) - gather(self.logits, self.top) - self.rest.log1p()

    @cached_property
    def rank(self) -> Tensor:
        assert self.tokens is not None
        return (self.logits > gather(self.logits, self.tokens)[..., None]).sum(-1).float() + 1


class PairReading:
    """Both models' distributions at the same positions `[...]`: the host `p`, the donor `q`, and `x` the host's tokens.

    host, donor: `Distribution`, or on a GPU the `ModelRead` of a kernel that reads all logits once. Both have the same numbers.
    """

    def __init__(self, host_logits: Tensor, donor_logits: Tensor | None = None, tokens: Tensor | None = None) -> None:
        self.host_logits, self.donor_logits, self.tokens = host_logits, donor_logits, tokens
        self.by_kernels = kernels.uses_kernels(host_logits)

    @cached_property
    def _kernel(self) -> kernels.PairRead:
        return kernels.read_pair(self.host_logits, self.donor_logits, self.tokens)

    @cached_property
    def host(self) -> Distribution | ModelRead:
        return self._kernel.host if self.by_kernels else self._host

    @cached_property
    def donor(self) -> Distribution | ModelRead:
        return self._kernel.donor if self.by_kernels else self._donor

    @cached_property
    def _host(self) -> Distribution:
        return Distribution(self.host_logits, self.tokens)

    @cached_property
    def _donor(self) -> Distribution:
        assert self.donor_logits is not None
        return Distribution(self.donor_logits, self.tokens)

    @cached_property
    def ce(self) -> Tensor:
        """`-sum_v p(v) log q(v)`, equation (2); infinite where the donor rules out a token that the host may write."""
        return self._kernel.ce if self.by_kernels else -expectation(self._host.probs, self._donor.log_probs)

    @cached_property
    def rkl(self) -> Tensor:
        """`KL(p || q) = ce - H(p)`, summed term by term so that nearly equal models do not cancel to noise."""
        if self.by_kernels:
            return self._kernel.rkl
        return expectation(self._host.probs, self._host.log_probs - self._donor.log_probs).clamp(min=0.0)

    @cached_property
    def js(self) -> Tensor:
        """`KL(p || m) / 2 + KL(q || m) / 2`, `m = (p + q) / 2`: at most ln 2."""
        if self.by_kernels:
            assert self.donor_logits is not None
            return kernels.jensen_shannon(self.host_logits, self.donor_logits).clamp(min=0.0, max=JS_MAX)
        log_m = torch.logaddexp(self._host.log_probs, self._donor.log_probs) - math.log(2.0)
        host, donor = (expectation(one.probs, one.log_probs - log_m) for one in (self._host, self._donor))
        return ((host + donor) / 2).clamp(min=0.0, max=JS_MAX)

    def in_nuclei(self, top_p: float) -> "PairReading":
        """Of both nuclei of `top_p`, renormalised: in torch on any device."""
        assert self.donor_logits is not None
        nuclei = PairReading(_nucleus(self.host_logits, top_p), _nucleus(self.donor_logits, top_p), self.tokens)
        nuclei.by_kernels = False
        return nuclei


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    ordered, index = logits.float().sort(dim=-1, descending=True, stable=True)
    p = ordered.softmax(-1)
    outside = p.cumsum(-1) - p >= top_p  # the mass before this token already reaches top_p
    return ordered.masked_fill(outside, -torch.inf).scatter(-1, index, ordered.masked_fill(outside, -torch.inf))


Asked = Tensor | None  # None where a model was not asked


def observe(
    tokens: Tensor, host_logits: Asked, donor_logits: Asked, *, base_logits: Asked = None, host_tokens: Asked = None
) -> Tensor:
    """Float32 `[..., 5]` of tokens `[...]`, in the order of `OBSERVED`; NaN where a model was not asked.

    Logits are `[..., vocab]`. Entropy and log-probabilities in nats; the rank, under the host, of the emitted token is 1 for
    its likeliest one. `host_tokens` `[...]` are what the host draws with the same numbers; ids below 2^24 are exact in float32.
    """
    observed = torch.full((*tokens.shape, len(OBSERVED)), torch.nan, device=tokens.device)
    if host_tokens is not None:
        observed[..., 4] = host_tokens
    first, second = (donor_logits, None) if host_logits is None else (host_logits, donor_logits)
    assert first is not None
    reading = PairReading(first, second, tokens)
    host = None if host_logits is None else reading.host
    donor = None if donor_logits is None else reading.host if host is None else reading.donor
    if base_logits is not None:
        base = host if base_logits is host_logits else donor
        assert base is not None
        observed[..., 0] = base.entropy
    for place, model in ((1, host), (2, donor)):
        if model is not None:
            observed[..., place] = _log_prob(model, tokens)
    if host is not None:
        observed[..., 3] = host.rank
    return observed


def _log_prob(model: Distribution | ModelRead, tokens: Tensor) -> Tensor:
    """Nats `[...]`. On a CPU without the sums that scores need, whose small values count."""
    return model.logprob if isinstance(model, ModelRead) else gather(model.log_probs, tokens)


def judge_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities of tokens `[...]` and whether they are the likeliest, as 0 or 1: float32 `[..., 2]`."""
    model = PairReading(logits, None, tokens).host
    return torch.stack([_log_prob(model, tokens), (model.top == tokens).float()], -1)


def compare(reading: PairReading) -> Tensor:
    """Float32 `[..., 8]` of a reading with the base as host and tokens `[...]`, in the order of `COMPARED`.

    Entropies and log-probabilities in nats; ranks are those of the token that stands there, 1 for the likeliest; tops are the
    likeliest tokens' ids. Whole numbers below 2^24 are exact in float32.
    """
    assert reading.tokens is not None
    both, tokens = (reading.host, reading.donor), reading.tokens
    columns = [*(one.entropy for one in both), *(_log_prob(one, tokens) for one in both)]
    columns += [*(one.rank for one in both), *(one.top for one in both)]
    return torch.stack([column.float() for column in columns], -1)

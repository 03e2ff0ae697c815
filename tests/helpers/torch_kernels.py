"""What the kernels compute, in plain torch, in fixed shapes and without a wait: what they are compared with."""

import math

import torch
from torch import Tensor

from lm_eval_takeover.kernels.operations import ModelRead, PairRead
from lm_eval_takeover.method.reading import log_probs
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.method.request import Sampling

_GOLDEN, _MASK = 0x9E3779B1, 0xFFFFFFFF


def draw_in_torch(logits: Tensor, at: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Tokens and masses `[rows]` of logits `[rows, vocab]` and the words `[rows]` as int64."""
    if sampling.temperature == 0 or sampling.top_k == 1:
        return logits.argmax(-1), logits.amax(-1).double() * 0 + 1
    logits = logits.float()
    surprise = (logits.amax(-1, keepdim=True) - logits) / sampling.temperature
    surprise += 0.0  # never -0.0, whose bits are negative
    weights = (-surprise).exp().double()
    masses = weights.sum(-1)
    if 0 < sampling.top_k < logits.shape[-1]:
        weights = weights * _shortest_prefix(surprise, (surprise >= 0).double(), float(sampling.top_k))
    if sampling.top_p < 1:
        weights = weights * _shortest_prefix(surprise, weights, sampling.top_p * weights.sum(-1, keepdim=True))
    numbers = token_numbers(at, logits.shape[-1])
    return torch.where(weights > 0, -numbers.log() / weights, torch.inf).argmin(-1), masses


def token_numbers(at: Tensor, vocab: int) -> Tensor:
    """`u_v` of every token: float64 `[rows, vocab]`. int64 products wrap, and their low 32 bits are exact."""
    ids = torch.arange(vocab, device=at.device)
    x = _mix((ids * _GOLDEN + (at[:, None] & _MASK)) & _MASK)
    x = _mix(x ^ ((at[:, None] >> 32) & _MASK))
    return (x.double() + 0.5) * 2.0**-32


def _mix(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)


def _shortest_prefix(surprise: Tensor, weights: Tensor, target: Tensor | float) -> Tensor:
    """The shortest prefix, by surprise and then by id, whose weights reach `target`: bool `[rows, vocab]`.

    Bisects the bits of the edge's surprise, which are in order since it is at least 0.
    """
    bits = surprise.contiguous().view(torch.int32)
    low, high = torch.zeros_like(bits[:, :1]), torch.full_like(bits[:, :1], 0x7F800000)
    for _ in range(31):
        middle = low + (high - low) // 2
        reached = torch.where(bits <= middle, weights, 0.0).sum(-1, keepdim=True) >= target
        low, high = torch.where(reached, low, middle + 1), torch.where(reached, middle, high)
    inside, equal = bits < high, bits == high
    missing = target - torch.where(inside, weights, 0.0).sum(-1, keepdim=True)
    each = torch.where(equal, weights, 0.0).amax(-1, keepdim=True)
    return inside | (equal & (equal.cumsum(-1) <= (missing / each).ceil().clamp(min=1)))


def read_in_torch(host: Tensor, donor: Tensor | None = None, tokens: Tensor | None = None) -> PairRead:
    """As `operations.read_pair`."""
    none = host.new_full(host.shape[:-1], math.nan, dtype=torch.float32)
    ce, rkl = (none, none) if donor is None else (scores.get("ce")(host, donor), scores.get("rkl")(host, donor))
    models = [ModelRead(*[none] * 6) if logits is None else _read_model(logits, tokens) for logits in (host, donor)]
    return PairRead(ce, rkl, *models)


def _read_model(logits: Tensor, tokens: Tensor | None) -> ModelRead:
    shifted = logits.float() - logits.float().amax(-1, keepdim=True)
    rest = shifted.exp().scatter(-1, shifted.argmax(-1, keepdim=True), 0.0).sum(-1)
    undefined = ~logits.amax(-1).isfinite()
    second = shifted.scatter(-1, shifted.argmax(-1, keepdim=True), -math.inf).amax(-1).exp()
    rest, second = (one.masked_fill(undefined, math.nan) for one in (rest, second))
    logprob = rank = torch.full_like(rest, math.nan)
    if tokens is not None:
        logprob = log_probs(logits).gather(-1, tokens[..., None])[..., 0]
        rank = (logits > logits.gather(-1, tokens[..., None])).sum(-1).float() + 1
    return ModelRead(scores.get("entropy")(logits), logprob, rank, logits.argmax(-1).float(), rest, second)

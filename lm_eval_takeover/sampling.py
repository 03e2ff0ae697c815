"""Counter-based sampling: one uniform number per token, so that nothing else can change the text.

Position `t` of sample `j` of a request is drawn with `u(seed, request, j, t)` by inverse CDF over the distribution
sorted by descending probability, ties by token id. The number depends on no batch, order, process or restart.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.errors import ArgumentError

HEAD = 256  # tokens sorted at first; a row that needs more gets them


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep the whole vocabulary.

    The order is that of transformers: temperature, then top-k, then top-p.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or 1e-6 <= self.temperature < float("inf")):
            raise ArgumentError(f"temperature={self.temperature} is neither 0 (greedy) nor a number of at least 1e-6")
        if not 0 < self.top_p <= 1:
            raise ArgumentError(f"top_p={self.top_p} is outside (0, 1]; 1 keeps every token")
        if self.top_k < 0:
            raise ArgumentError(f"top_k={self.top_k} is negative; 0 keeps every token")


GREEDY = Sampling()


def request_digest(prompt: Sequence[int]) -> bytes:
    """`r`: 16 bytes that stand for a prompt's token ids."""
    return hashlib.blake2b(np.asarray(prompt, dtype="<i8").tobytes(), digest_size=16).digest()


def uniforms(seed: int, request: bytes, sample: int, count: int, *, stream: str = "token") -> NDArray[np.float64]:
    """`u(seed, request, sample, t)` for `t = 0 .. count - 1`: float64 `[count]` in [0, 1).

    Philox4x64-10 keyed by a digest of the arguments, its counter the position; the top 53 bits of each word. `stream`
    separates the draws of tokens from those of the `random` policy.
    """
    name = f"{stream}\0{seed}\0{sample}\0".encode() + request
    key = np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), dtype="<u8")
    words = np.random.Philox(key=key).random_raw(count)
    return np.asarray(words >> np.uint64(11), dtype=np.float64) * 2.0**-53


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling, *, head: int = HEAD) -> Tensor:
    """One token per row. logits `[rows, vocab]`, uniform float64 `[rows]`; returns ids `[rows]`.

    Sorts only the `head` most likely tokens of each row, and more of them only for the rows whose draw falls outside:
    the result does not depend on `head`.
    """
    if sampling.temperature == 0:
        return logits.argmax(-1)
    # The maximum goes first, so that the smallest temperature divides nothing but differences and cannot overflow.
    logits = logits.float()
    highest, tokens = logits.max(-1, keepdim=True)
    tokens = tokens[:, 0]
    scaled = (logits - highest) / sampling.temperature
    # A token with more than half of the mass has no equal, and is the one drawn if it also has more than u: most rows end here.
    # What rounding could put on either side goes the long way, so that a row's token depends on no other row.
    most = scaled.exp().sum(-1, dtype=torch.float64).reciprocal()
    undecided = ~(most > uniform.clamp(min=0.5) + 1e-4)
    if uniform.device.type == "cpu" and not undecided.any():
        return tokens
    rows = undecided.nonzero()[:, 0]
    vocab, size = scaled.shape[-1], max(head, sampling.top_k + 1)
    while len(rows):
        size = min(size, vocab)
        drawn, decided = _draw_from_head(scaled[rows], uniform[rows], sampling, size)
        tokens[rows[decided]] = drawn[decided]
        rows, size = rows[~decided], size * 8
    return tokens


def _draw_from_head(scaled: Tensor, uniform: Tensor, sampling: Sampling, size: int) -> tuple[Tensor, Tensor]:
    """Tokens drawn from the `size` most likely ones, and whether that was enough to know them. Both `[rows]`."""
    vocab = scaled.shape[-1]
    if size < vocab:
        values, ids = scaled.topk(size, dim=-1)
        ids, by_id = ids.sort(dim=-1)
        values = values.gather(-1, by_id)
    else:
        values, ids = scaled, torch.arange(vocab, device=scaled.device).expand_as(scaled)
    values, order = values.sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)

    log_total = scaled.logsumexp(-1, keepdim=True)
    p = (values - log_total).double().exp()
    mass = p.cumsum(-1)
    total = torch.ones_like(mass[:, :1])
    known = torch.ones_like(total, dtype=torch.bool)
    if 0 < sampling.top_k < vocab:
        total = mass[:, sampling.top_k - 1 : sampling.top_k]
    if sampling.top_p < 1:
        # The nucleus is the shortest prefix that holds top_p of the mass; `last` is its final index.
        last = (mass < sampling.top_p * total).sum(-1, keepdim=True)
        known = last < size
        total = mass.gather(-1, last.clamp(max=size - 1))
    index = (mass <= uniform[:, None] * total).sum(-1, keepdim=True)
    known &= index < size
    # Rounding can leave the whole mass a hair below u: then it is the last token that is possible at all.
    index = torch.minimum(index, (p > 0).sum(-1, keepdim=True) - 1).clamp(min=0)  # NaN has none; callers refuse it
    # A tie with the end of the head: an equal token of smaller id may lie outside it.
    known &= values.gather(-1, index) > values[:, -1:]
    return ids.gather(-1, index)[:, 0], known[:, 0] | (size == vocab)

"""Counter-based sampling: one uniform number per token, so that nothing else can change the text.

Position `t` of sample `j` of a request is drawn with `u(seed, request, j, t)` by inverse CDF over the distribution
sorted by descending probability, ties by token id. The number depends on no batch, order, process or restart.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.method.request import Sampling

HEAD = 256  # tokens sorted at first; a row that needs more gets them


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

    On a CPU NumPy's calls cost a fraction of torch's. Elsewhere the `head` most likely tokens of each row are sorted, and more
    of them where the draw falls outside: the result does not depend on `head`.
    """
    if logits.device.type == "cpu":
        with quiet():
            return torch.from_numpy(draw_on_cpu(logits.float().numpy(), uniform.numpy(), sampling)[0])
    tokens, known = draw_from_head(logits, uniform, sampling, head)
    while not known.all():
        head *= 8
        rows = (~known).nonzero()[:, 0]
        tokens[rows], known[rows] = draw_from_head(logits[rows], uniform[rows], sampling, head)
    return tokens


def draw_on_cpu(
    logits: NDArray[np.float32], uniform: NDArray[np.float64], sampling: Sampling, *, entropy: bool = False
) -> tuple[NDArray[np.int64], list[float]]:
    """As `draw`, and with `entropy` the entropies of the raw distributions in nats, for which a draw has computed most.

    To be called under `quiet()`. It runs once per token, between two passes that have driven all code out of the processor's
    caches: hence the bare reductions and as few calls as possible.
    """
    tokens: NDArray[np.int64] = logits.argmax(1)
    if sampling.temperature == 0 and not entropy:
        return tokens, []
    # The maximum goes first, so that the smallest temperature divides nothing but differences and cannot overflow.
    alone = len(logits) == 1
    scaled = logits - (logits[0, tokens[0]] if alone else np.maximum.reduce(logits, axis=1, keepdims=True))
    entropies: list[float] = []
    masses: list[float] | None = None
    if entropy:
        weights = np.exp(scaled)
        masses = np.add.reduce(weights, axis=1).tolist()
        means = np.add.reduce(weights * scaled, axis=1).tolist()
        if math.isnan(sum(means)):  # 0 x infinity, of tokens that are ruled out
            means = np.add.reduce(weights * np.maximum(scaled, np.float32(-1e4)), axis=1).tolist()
        entropies = [math.log(mass) - mean / mass for mass, mean in zip(masses, means, strict=True)]
    if sampling.temperature == 0:
        return tokens, entropies
    if sampling.temperature != 1 or masses is None:
        scaled = scaled / np.float32(sampling.temperature)
        weights = np.exp(scaled)
        masses = np.add.reduce(weights, axis=1).tolist()
    # Where the first token's mass, 1 of the total, is more than u, it is the one; most rows end here, without an exact sum.
    for row, (mass, number) in enumerate(zip(masses, uniform.tolist(), strict=True)):
        if mass * number < _SURELY:
            continue
        total = float(weights[row].sum(dtype=np.float64))
        if total * number >= 1:
            tokens[row] = _select(scaled[row], weights[row], total, number, sampling)
    return tokens, entropies


_SURELY = 0.999  # float32 sums are nearer to the exact ones than that


def quiet() -> np.errstate:
    """The context of `draw_on_cpu`: NaN is for callers to refuse, and what overflows is impossible."""
    return np.errstate(invalid="ignore", over="ignore")


_SHORT = 2048  # values that are sorted sooner than picked out
_SORTED = 2**14  # and sooner than divided


def _select(
    scaled: NDArray[np.float32], weights: NDArray[np.float32], total: float, uniform: float, sampling: Sampling
) -> int:
    """The token at `uniform` of the mass that is kept. Only what can matter is looked at, and by value alone."""
    vocab, top_k, top_p = len(scaled), sampling.top_k, sampling.top_p
    cut = 0 < top_k < vocab
    reach = top_p if top_p < 1 else uniform  # share of the mass behind which nothing matters
    chosen, kept = scaled, total
    if vocab > _SHORT:
        # Left out are tokens that together hold half of the rest, at most.
        least = 0.5 * (1 - reach) * total / vocab
        wanted = scaled >= np.partition(scaled, vocab - top_k)[vocab - top_k] if cut else weights > least
        # Picking out most of them takes longer than looking at the rest as well.
        if 4 * np.count_nonzero(wanted) < vocab:
            chosen = scaled[wanted]
    surprise = -chosen
    mass: NDArray[np.float64] | None = None
    if cut or len(surprise) <= _SORTED:
        surprise = np.sort(surprise)[: top_k if cut else vocab]
        mass = _cumulative(surprise)
        if cut:
            kept = float(mass[-1])
    last, end = len(surprise) - 1, surprise[-1]
    if top_p < 1:  # the nucleus is the shortest prefix that holds top_p of the mass
        last, end, kept = _crossing(surprise, mass, top_p * kept, "left")
    place, value, _ = _crossing(surprise, mass, uniform * kept, "right")
    if place > last:  # two sums of the same numbers may differ by a rounding
        place, value = last, end
    if not np.exp(-value):  # rounding left the whole mass a hair below u: it is the last token that is possible at all
        value = surprise[np.exp(-surprise) > 0].max()
        place = int(np.count_nonzero(surprise <= value)) - 1
    equal = np.flatnonzero(scaled == -value)
    return int(equal[place - np.count_nonzero(surprise < value)])  # equal ones by their ids


def _crossing(
    surprise: NDArray[np.float32], mass: NDArray[np.float64] | None, target: float, side: Literal["left", "right"]
) -> tuple[int, np.float32, float]:
    """Where the least surprising tokens hold at least (`left`) or more than (`right`) `target` of the mass.

    The place of the last of them in the order of surprise, its surprise, and the mass up to it. `mass` is cumulative, for tokens
    that are in order; of others, halves are left aside by their mass, as quickselect does it by their number, until few are left.
    """
    before, skipped = 0.0, 0
    if mass is None:
        while len(surprise) > _SORTED:
            half = len(surprise) // 2
            surprise = np.partition(surprise, half)
            through = before + float(np.exp(-surprise[:half]).sum(dtype=np.float64))
            if through > target or (side == "left" and through == target):
                surprise = surprise[:half]
            else:
                before, skipped, surprise = through, skipped + half, surprise[half:]
        surprise = np.sort(surprise)
        mass = before + _cumulative(surprise)
    index = min(int(mass.searchsorted(target, side)), len(mass) - 1)
    return skipped + index, surprise[index], float(mass[index])


def _cumulative(surprise: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mass up to each token; torch adds up in less than half of NumPy's time."""
    return torch.from_numpy(np.exp(-surprise)).cumsum(0, dtype=torch.float64).numpy()


def draw_from_head(logits: Tensor, uniform: Tensor, sampling: Sampling, size: int) -> tuple[Tensor, Tensor]:
    """Tokens drawn from the `size` most likely ones, and whether that was enough to know them: both `[rows]`.

    As `draw`, in operations of fixed shapes that never wait for a result.
    """
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)
        return tokens, torch.ones_like(tokens, dtype=torch.bool)
    logits = logits.float()
    scaled = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    vocab = scaled.shape[-1]
    size = min(max(size, sampling.top_k + 1), vocab)
    if size < vocab:
        values, ids = scaled.topk(size, dim=-1)
        ids, by_id = ids.sort(dim=-1)
        values = values.gather(-1, by_id)
    else:
        values, ids = scaled, torch.arange(vocab, device=scaled.device).expand_as(scaled)
    values, order = values.sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)

    p = values.double().exp()
    mass = p.cumsum(-1)
    total = scaled.exp().sum(-1, keepdim=True, dtype=torch.float64)
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

"""Drawing tokens: an exponential race (the Gumbel-max trick) over shared random numbers.

Position `t` of sample `j` of request `r` has one 64-bit word `W(seed, r, j, t)` of a counter-based generator; token `v` has

    x   = fmix32(v * 0x9E3779B1 + low32(W));  x = fmix32(x xor high32(W))      32-bit arithmetic, MurmurHash3's finaliser
    u_v = (x + 1/2) / 2^32;  E_v = -ln u_v                                     an Exp(1) variable per token
    token = argmin over the kept tokens of E_v / p_v                           ties: the lower id

which draws exactly from `p`, the distribution after temperature, top-k, top-p and min-p (in transformers' order; of equal tokens
at an edge the lower ids are kept). Two distributions at total variation distance `d` draw different tokens with a probability
between `d` and `2 d / (1 + d)`. So models that nearly agree mostly draw the same token, and rounding seldom changes one.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from functools import cache, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.kernels import operations as kernels
from lm_eval_takeover.method.request import Sampling

_DENORMAL = torch.tensor(1e-40)
_GOLDEN, _MASK = 0x9E3779B1, 0xFFFFFFFF
CHANCE = "takeover"  # the stream of policies that decide by chance
Words = NDArray[np.uint64]
Floats = NDArray[np.float32]


@contextmanager
def flush_denormals() -> Iterator[None]:
    """This thread takes numbers below 1e-38, a hundred times slower on a CPU, for 0; not for longer, since NumPy warns of it."""
    flushed = float(_DENORMAL * 1.0) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)


def request_digest(prompt: Sequence[int]) -> bytes:
    """`r`: 16 bytes that stand for a prompt's token ids."""
    return hashlib.blake2b(np.asarray(prompt, dtype="<i8").tobytes(), digest_size=16).digest()


def words(seed: int, request: bytes, sample: int, count: int, *, stream: str = "token") -> Words:
    """`W(seed, request, sample, t)` for `t = 0 .. count - 1`: uint64 `[count]`.

    Philox4x64-10 keyed by a digest of the arguments, its counter the position. `stream` separates the draws of tokens from those
    of policies that decide by chance.
    """
    key = stream_key(seed, request, sample, stream)
    return np.asarray(np.random.Philox(key=key).random_raw(count), dtype=np.uint64)


def stream_key(seed: int, request: bytes, sample: int, stream: str = "token") -> Words:
    """`K` of a stream's words: uint64 `[2]`."""
    name = f"{stream}\0{seed}\0{sample}\0".encode() + request
    return np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), dtype="<u8")


def as_chances(at: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) that a policy may decide by: float64 `[...]`, the top 53 bits of words of `CHANCE`, as int64."""
    return ((at >> 11) & (2**53 - 1)).double() * 2.0**-53


def draw(logits: Tensor, at: Words | Tensor, sampling: Sampling) -> Tensor:
    """The ids that `draw_rows` gives; words as they are, or as the int64 of their bits on the device of the logits."""
    if not isinstance(at, Tensor):
        at = torch.from_numpy(np.ascontiguousarray(at).view(np.int64)).to(logits.device)
    with drawing():
        return draw_rows(logits, at, sampling)[0]


def draw_rows(logits: Tensor, at: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Ids int64 and masses float64 `[rows]` of logits `[rows, vocab]` and words `[rows]`, int64 of the same bits, on one device.

    A mass is as `draw_on_cpu` gives it. A GPU is not waited for. Under `drawing`.
    """
    if kernels.uses_kernels(logits):
        return kernels.draw(logits, at, place_rules(sampling, logits.device))
    drawn, mass = draw_on_cpu(logits.float().numpy(), at.numpy().view(np.uint64), sampling)
    return torch.from_numpy(drawn), torch.from_numpy(mass)


@cache  # for ever: captured CUDA graphs read the table
def place_rules(sampling: Sampling, device: torch.device) -> kernels.Rules:
    return kernels.Rules.of([astuple(sampling)], device)


@contextmanager
def drawing() -> Iterator[None]:
    """The context of `draw_on_cpu`: NaN is for callers to refuse, and weights may underflow, to 0 at once."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"), flush_denormals():
        yield


# On a CPU: numpy, whose calls cost a fraction of torch's.

_FEW = 2048  # tokens whose numbers become logarithms, all of them
_GROUPS = 1024  # of tokens, among whose likeliest the `top_k`-th is looked for first
_SURELY = 0.999  # float32 sums are closer than that to the exact ones


def draw_on_cpu(logits: Floats, at: Words, sampling: Sampling) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """As `draw`, and the mass of each row in units of its likeliest token's (at this temperature). Under `drawing`.

    A mass is 1 where the row is greedy, and NaN where it is no distribution. Called once per token: bare reductions of ufuncs
    cost a fraction of `sum` and `max`.
    """
    tokens: NDArray[np.int64] = logits.argmax(1)
    if sampling.temperature == 0 or sampling.top_k == 1:
        return tokens, logits[np.arange(len(tokens)), tokens] * 0.0 + np.ones(len(tokens))
    # The maximum goes first, so that the smallest temperature divides nothing but differences and cannot overflow.
    scaled = logits - logits[np.arange(len(tokens)), tokens][:, None]
    if sampling.temperature != 1:
        scaled /= np.float32(sampling.temperature)
    weights = np.exp(scaled)
    masses = np.add.reduce(weights, axis=1).astype(np.float64)
    for row, mass in enumerate(masses.tolist()):
        # If the likeliest token (weight 1) is the whole nucleus, it is drawn.
        if not (math.isnan(mass) or (sampling.top_p * mass < _SURELY and not sampling.top_k)):
            tokens[row] = _draw_row(scaled[row], weights[row], int(at[row]), sampling)
    return tokens, masses


def _draw_row(scaled: Floats, weights: Floats, word: int, sampling: Sampling) -> int:
    """The race over all tokens, as in `kernels.draws`: while its winner is cut, it goes on among the tokens before that one.

    Those are likelier, or as likely and of lower id. `scaled`: log-weights, 0 at most.
    """
    vocab, top_k, top_p = len(weights), sampling.top_k, sampling.top_p
    cuts = top_p < 1 or bool(top_k) or bool(sampling.min_p)
    total = float(weights.sum(dtype=np.float64)) if top_p < 1 and not 0 < top_k < vocab else 0.0  # the mass that top_p is of
    floor = np.float32(math.log(sampling.min_p)) if sampling.min_p else -math.inf
    ids: NDArray[np.int64] | None = None  # those that race; None: all
    if 0 < top_k < vocab:
        ids = np.flatnonzero(scaled >= _kth_largest(scaled, top_k))
        total = float(np.sort(weights[ids])[-top_k:].sum(dtype=np.float64))  # without the ties behind the last
    elif top_p < 1 and vocab > _FEW:
        # What is left out holds half of the rest, at most, and so nothing of the nucleus.
        likely = weights > 0.5 * (1 - top_p) * total / vocab
        if 2 * np.count_nonzero(likely) < vocab:
            ids = np.flatnonzero(likely)
    if ids is not None:
        scaled, weights = scaled[ids], weights[ids]
    while True:
        place = _run_race(ids, weights, word)
        if cuts:
            before = scaled > scaled[place]
            before[:place] |= scaled[:place] == scaled[place]
            count = np.count_nonzero(before)
            is_cut = scaled[place] < floor or 0 < top_k <= count
            if not is_cut and top_p < 1:
                is_cut = float((weights * before).sum(dtype=np.float64)) >= top_p * total
            if is_cut and count:
                ids = np.flatnonzero(before) if ids is None else ids[before]
                scaled, weights = scaled[before], weights[before]
                continue
        return place if ids is None else int(ids[place])


def _kth_largest(values: Floats, k: int) -> np.float32:
    if k <= _GROUPS < len(values):  # as many are at least as large as the k-th of the groups' largest: only these are sorted
        groups = values[: len(values) // _GROUPS * _GROUPS].reshape(-1, _GROUPS)
        values = values[values >= _kth_largest(groups.max(0), k)]
    return np.partition(values, len(values) - k)[len(values) - k]  # type: ignore[no-any-return]


def _run_race(ids: NDArray[np.int64] | None, weights: Floats, word: int) -> int:
    """The place of the least `E_v / p_v` among these tokens, of all where there are no ids."""
    x = _hash(_multiples(len(weights)), word) if ids is None else token_numbers(ids, word)
    if len(weights) <= _FEW:
        return int((_wait(x) / weights.astype(np.float64)).argmin())
    # Two tokens bound what wins. As E is at least 1 - u, only tokens with `1 - u <= bound * weight` can: a few of them.
    some = [int(weights.argmax()), int(x.argmax())]
    bound = np.fmin.reduce(_wait(x[some]) / weights[some]) * 1.0001
    near = np.flatnonzero((~x).astype(np.float32) <= weights * np.float32(bound * 2.0**32))
    return int(near[(_wait(x[near]) / weights[near].astype(np.float64)).argmin()])


def _wait(x: NDArray[np.uint32]) -> NDArray[np.float64]:
    """`E_v`."""
    return -np.log((x + 0.5) * 2.0**-32)  # type: ignore[no-any-return]


@lru_cache(maxsize=4)
def _multiples(vocab: int) -> NDArray[np.uint32]:
    """Of every token, what its numbers begin with."""
    return np.arange(vocab, dtype=np.uint32) * np.uint32(_GOLDEN)


def token_numbers(ids: NDArray[np.int64], word: int) -> NDArray[np.uint32]:
    """`x` of these tokens, whose `u` is `(x + 1/2) / 2^32`."""
    return _hash(ids.astype(np.uint32) * np.uint32(_GOLDEN), word)


def _hash(multiples: NDArray[np.uint32], word: int) -> NDArray[np.uint32]:
    x = _mix(multiples + np.uint32(word & _MASK))
    x ^= np.uint32(word >> 32)
    return _mix(x)


def _mix(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """`fmix32`, in place."""
    shifted = np.empty_like(x)  # one, since large arrays come from the system, page by page
    for bits, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, None)):
        x ^= np.right_shift(x, np.uint32(bits), out=shifted)
        if factor is not None:
            x *= np.uint32(factor)
    return x

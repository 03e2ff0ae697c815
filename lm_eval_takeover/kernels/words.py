"""`W(seed, r, j, t)` on a device: numpy's Philox4x64-10. Its counter is the position, so no table of words is needed."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lm_eval_takeover.kernels.draws import kernel

_BLOCK = 128


@kernel
def _philox(keys, positions, words, count, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = lanes < count
    position = tl.load(positions + lanes, mask=here, other=0)
    first = tl.load(keys + 2 * lanes, mask=here, other=0).to(tl.uint64)
    second = tl.load(keys + 2 * lanes + 1, mask=here, other=0).to(tl.uint64)
    a = (position // 4 + 1).to(tl.uint64)
    b, c, d = a * 0, a * 0, a * 0
    for _ in tl.static_range(10):
        high, low = tl.umulhi(a, 0xD2E7470EE14C6C93), a * 0xD2E7470EE14C6C93
        other_high, other_low = tl.umulhi(c, 0xCA5A826395121157), c * 0xCA5A826395121157
        a, b, c, d = other_high ^ b ^ first, other_low, high ^ d ^ second, low
        first += 0x9E3779B97F4A7C15
        second += 0xBB67AE8584CAA73B
    lane = position % 4
    word = tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, d)))
    tl.store(words + lanes, word.to(tl.int64), mask=here)


def compute_words(keys: Tensor, positions: Tensor) -> Tensor:
    """See `operations.compute_words`."""
    words = torch.empty_like(positions)
    if len(positions):
        _philox[(triton.cdiv(len(positions), _BLOCK),)](keys, positions, words, len(positions), BLOCK=_BLOCK)
    return words

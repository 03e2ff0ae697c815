"""What a decoder's layer computes between its products, in Triton: a norm, queries and keys, and the gated activation.

A layer of a small model takes longer to start its kernels than to compute. Each kernel here does the work of two to seven of
torch's, and rounds to the dtype of its input where transformers' modules do.
Shapes: `D` head_dim, `S` size of a norm, rounded up, `T` columns of a tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 1024  # of a tile of the activation


# Compiled once for all numbers of tokens and places of tensors.
kernel = triton.jit(
    do_not_specialize=("size", "heads", "kv_heads", "new", "position_row", "slot", "head_stride", "column"),
    do_not_specialize_on_alignment=(
        "x", "weight", "made", "qkv", "cosines", "sines", "slots", "positions", "queries", "key_cache", "value_cache", "gate_up",
    ),
)  # fmt: skip


@triton.jit
def _round(value, like):
    return value.to(like.dtype.element_ty).to(tl.float32)


@kernel
def _normalise(x, weight, made, eps, size, S: tl.constexpr):
    lanes, at = tl.arange(0, S), tl.program_id(0).to(tl.int64) * size
    read = tl.load(x + at + lanes, mask=lanes < size, other=0.0).to(tl.float32)
    normed = _round(read * tl.rsqrt(tl.sum(read * read, 0) / size + eps), x)
    scaled = normed * tl.load(weight + lanes, mask=lanes < size, other=0.0).to(tl.float32)
    tl.store(made + at + lanes, scaled.to(made.dtype.element_ty), mask=lanes < size)


@kernel
def _rotate(
    qkv, weight, cosines, sines, slots, positions, queries, key_cache, value_cache, eps, heads, kv_heads, new,
    position_row, slot, head_stride, column, NORMED: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    token, head, dims = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, D)
    partners = (dims + D // 2) % D
    begin = qkv + (token * (heads + 2 * kv_heads) + head) * D
    read = tl.load(begin + dims)
    position = tl.load(positions + token // new * position_row + token % new)
    if head < heads + kv_heads:
        here, there = read.to(tl.float32), tl.load(begin + partners).to(tl.float32)
        if NORMED:
            scale = tl.rsqrt(tl.sum(here * here, 0) / D + eps)
            here = _round(_round(here * scale, qkv) * tl.load(weight + head * D + dims).to(tl.float32), qkv)
            there = _round(_round(there * scale, qkv) * tl.load(weight + head * D + partners).to(tl.float32), qkv)
        here = _round(here * tl.load(cosines + position * D + dims).to(tl.float32), qkv)
        there = _round(there * tl.load(sines + position * D + dims).to(tl.float32), qkv)
        read = (here + there).to(read.dtype)
    at = tl.load(slots + token // new) * slot + (head - heads) % kv_heads * head_stride + position * column + dims
    if head < heads:
        tl.store(queries + (token * heads + head) * D + dims, read)
    elif head < heads + kv_heads:
        tl.store(key_cache + at, read)
    else:
        tl.store(value_cache + at, read)


@kernel
def _activate(gate_up, made, size, T: tl.constexpr):
    token, lanes = tl.program_id(0).to(tl.int64), tl.program_id(1) * T + tl.arange(0, T)
    begin, inside = gate_up + token * 2 * size + lanes, lanes < size
    gate = tl.load(begin, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(begin + size, mask=inside, other=0.0).to(tl.float32)
    activated = _round(gate / (1.0 + tl.exp(-gate)), gate_up) * up
    tl.store(made + token * size + lanes, activated.to(made.dtype.element_ty), mask=inside)


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `operations.normalise`."""
    tokens, size = x.shape
    out = torch.empty_like(x)
    _normalise[(tokens,)](x, weight, out, eps, size, S=triton.next_power_of_2(size), enable_fp_fusion=False)
    return out


def rotate(
    qkv: Tensor,
    weight: Tensor | None,
    cosines: Tensor,
    sines: Tensor,
    slots: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    eps: float,
) -> Tensor:
    """See `operations.rotate`."""
    rows, new, parts, dim = qkv.shape
    kv_heads = keys.shape[2]
    heads = parts - 2 * kv_heads
    queries = qkv.new_empty(rows, new, heads, dim)
    slot, column, head, _ = keys.stride()
    assert keys.stride() == values.stride()
    _rotate[rows * new, parts](
        qkv, qkv if weight is None else weight, cosines, sines, slots, positions, queries, keys, values, eps, heads, kv_heads,
        new, positions.stride(0), slot, head, column, NORMED=weight is not None, D=dim, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return queries


def activate(gate_up: Tensor) -> Tensor:
    """See `operations.activate`."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, size)
    _activate[tokens, triton.cdiv(size, COLUMNS)](gate_up, out, size, T=COLUMNS, enable_fp_fusion=False)
    return out

"""Attention of few new tokens to a long cache in Triton, split over the columns (flash decoding, Dao et al. 2023).

SDPA with a mask starts one block of threads for the new tokens of each key head: 8 for a row of Qwen3-8B, where an H200 runs 132
at once. Here each key head's columns are divided among as many programs as the GPU runs, and a second kernel joins their parts.
Columns that no query of a tile sees are not read.
Shapes: `M` queries of a program (of all heads that share a key head), `D` head_dim, `T` columns of a tile, `S` parts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 64  # of a tile
_QUERIES = {torch.float32: 16}  # of a program, at most; else 64, which would compile three times as long in float32
_FEWEST = 128  # columns of a part
_PROGRAMS = 264  # two for each multiprocessor of an H100 or H200


# Compiled once for all sizes and layouts. `dim` is a multiple of 16, and so is where keys and values of a column begin.
kernel = triton.jit(
    do_not_specialize=(
        "new", "group", "columns", "kv_heads", "splits", "padded", "query_row", "query_new", "query_head", "key_row", "key_head",
        "key_column", "value_row", "value_head", "value_column", "mask_row", "mask_new",
    ),
    do_not_specialize_on_alignment=("queries", "key_cache", "value_cache", "mask", "mixes", "tops", "totals", "attended"),
)  # fmt: skip


@triton.jit
def _begin(buffer, row, head, place, of_row, of_head, of_column):
    """Where the keys or values of these columns begin."""
    return tl.multiple_of(buffer + row * of_row + head * of_head + place * of_column, 16)


@kernel
def _attend(
    queries, key_cache, value_cache, mask, mixes, tops, totals, scale, new, group, columns, kv_heads, splits,
    query_row, query_new, query_head, key_row, key_head, key_column, value_row, value_head, value_column, mask_row, mask_new,
    M: tl.constexpr, D: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    row, head = (tl.program_id(0) // kv_heads).to(tl.int64), (tl.program_id(0) % kv_heads).to(tl.int64)
    split = tl.program_id(1)
    lanes, dims = tl.program_id(2) * M + tl.arange(0, M), tl.arange(0, D)
    live = lanes < new * group
    token, heads = lanes % new, head * group + lanes // new
    begins = tl.multiple_of(queries + row * query_row + token * query_new + heads * query_head, 16)
    asked = tl.load(begins[:, None] + dims[None, :], mask=live[:, None], other=0.0)
    hidden = mask + row * mask_row + token * mask_new
    top = tl.full((M,), -float("inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    mixed = tl.zeros((M, D), tl.float32)
    each = tl.cdiv(tl.cdiv(columns, T), splits) * T
    for begin in range(split * each, tl.minimum(split * each + each, columns), T):
        place = (begin + tl.arange(0, T)).to(tl.int64)
        inside = place < columns
        bias = tl.load(hidden[:, None] + place[None, :], mask=live[:, None] & inside[None, :], other=-float("inf")).to(
            tl.float32
        )
        if tl.max(tl.max(bias, 1), 0) > -float("inf"):
            at = _begin(key_cache, row, head, place, key_row, key_head, key_column)
            read = tl.load(at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
            scores = tl.dot(asked, tl.trans(read), input_precision="ieee") * scale + bias
            higher = tl.maximum(top, tl.max(scores, 1))
            known = tl.where(higher == -float("inf"), 0.0, higher)
            weights, shrunk = tl.exp(scores - known[:, None]), tl.exp(top - known)
            at = _begin(value_cache, row, head, place, value_row, value_head, value_column)
            read = tl.load(at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
            mixed = mixed * shrunk[:, None] + tl.dot(weights.to(read.dtype), read, input_precision="ieee")
            total = total * shrunk + tl.sum(weights, 1)
            top = higher
    part = ((tl.program_id(0) * splits + split) * tl.num_programs(2) + tl.program_id(2)).to(tl.int64) * M + tl.arange(0, M)
    tl.store(tops + part, top)
    tl.store(totals + part, total)
    tl.store(mixes + part[:, None] * D + dims[None, :], mixed)


@kernel
def _join(
    mixes, tops, totals, attended, new, group, kv_heads, splits, padded, D: tl.constexpr, S: tl.constexpr
):  # fmt: skip
    split, dims = tl.arange(0, S), tl.arange(0, D)
    row, head, lane = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads, tl.program_id(1)
    at = (tl.program_id(0) * splits + split).to(tl.int64) * padded + lane
    top = tl.load(tops + at, mask=split < splits, other=-float("inf"))
    share = tl.exp(top - tl.max(top, 0))
    total = tl.sum(share * tl.load(totals + at, mask=split < splits, other=0.0), 0)
    mixed = tl.load(mixes + at[:, None] * D + dims[None, :], mask=split[:, None] < splits, other=0.0)
    token = row * new + lane % new
    place = attended + ((token * kv_heads + head) * group + lane // new).to(tl.int64) * D + dims
    tl.store(place, (tl.sum(mixed * share[:, None], 0) / total).to(attended.dtype.element_ty))


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """See `operations.attend`."""
    rows, new, heads, dim = queries.shape
    kv_heads, columns = keys.shape[1:3]
    lanes = new * (heads // kv_heads)
    tile = max(16, min(_QUERIES.get(queries.dtype, 64), triton.next_power_of_2(lanes)))
    tiles, programs = triton.cdiv(lanes, tile), rows * kv_heads
    splits = max(1, min(columns // _FEWEST, _PROGRAMS // (programs * tiles)))
    mixes = queries.new_empty(programs * splits * tiles * tile, dim, dtype=torch.float32)
    tops, totals = mixes.new_empty(2, len(mixes)).unbind()
    attended = queries.new_empty(queries.shape)
    _attend[programs, splits, tiles](
        queries, keys, values, mask, mixes, tops, totals, scale, new, heads // kv_heads, columns, kv_heads, splits,
        *queries.stride()[:3], *keys.stride()[:3], *values.stride()[:3], mask.stride(0), mask.stride(2),
        M=tile, D=dim, T=COLUMNS, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    _join[programs, lanes](
        mixes, tops, totals, attended, new, heads // kv_heads, kv_heads, splits, tiles * tile,
        D=dim, S=triton.next_power_of_2(splits), enable_fp_fusion=False,
    )  # fmt: skip
    return attended

# ruff: noqa: RUF059 (to Triton a name has one type in a function, so what is left over has names, too)
"""The numbers that scores and traces need of one or two distributions, in Triton. Each logit is read once.

    read       of each tile of the vocabulary: maxima, masses, and sums that are weighted by them
    add_up     of a row: log-sum-exps, and with them entropies, ce, rkl, log-probabilities, ranks
    diverge    (js) of each tile: its share of the divergence, once the masses of whole rows are known

Programs and shapes are those of `draws`. Sums of a tile are in units of its likeliest token. `add_up` converts them to one unit,
in float64. Logits that are no distribution (NaN, +inf, -inf everywhere) give NaN.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from lm_eval_takeover.kernels.draws import TILE, _find, _part, _place, _tile, are_aligned, kernel

# Float64 results of a tile, for each model; then those of both models.
_TOP, _MASS, _SLOPE, _ID, _REST, _SECOND, _RANK, _MODEL = map(tl.constexpr, range(8))
_CROSS, _GAP, _SHARE = map(tl.constexpr, range(3))
_PLANES = tl.constexpr(17)
COLUMNS = tl.constexpr(14)
_LN2 = tl.constexpr(math.log(2.0))


@triton.jit
def _weigh(read, top):
    """Logits `[R, T]` less the maximum `[R]` of their tile, and their weights in its units."""
    shifted = read - tl.where(top == -float("inf"), 0.0, top)[:, None]
    return shifted, tl.exp(shifted)


@triton.jit
def _chosen(begins, tokens, rows, live, TOKENS: tl.constexpr):
    """The logits `[R]` of the given tokens."""
    if TOKENS:
        token = tl.load(tokens + rows, mask=live, other=0)
        chosen = tl.load(begins + token, mask=live, other=0.0).to(tl.float32)
    else:
        chosen = rows.to(tl.float32) * 0.0 + float("nan")
    return chosen


@triton.jit
def _leave(at, splits, ids, read, chosen, live):
    """Store a tile's numbers of one model. Returns its shifted logits and their weights."""
    top, lane = tl.max(read, 1, return_indices=True)
    shifted, weight = _weigh(read, top)
    rest = tl.arange(0, read.shape[1])[None, :] != lane[:, None]
    ahead = tl.sum((read > chosen[:, None]).to(tl.int32), 1)
    tl.store(at + _TOP * splits, top.to(tl.float64), mask=live)
    tl.store(at + _MASS * splits, tl.sum(weight.to(tl.float64), 1), mask=live)
    tl.store(at + _SLOPE * splits, tl.sum(tl.where(weight > 0, weight * shifted, 0.0).to(tl.float64), 1), mask=live)
    tl.store(at + _ID * splits, (tl.min(ids) + lane).to(tl.float64), mask=live)
    tl.store(at + _REST * splits, tl.sum(tl.where(rest, weight, 0.0).to(tl.float64), 1), mask=live)
    tl.store(at + _SECOND * splits, tl.max(tl.where(rest, read, -float("inf")), 1).to(tl.float64), mask=live)
    tl.store(at + _RANK * splits, ahead.to(tl.float64), mask=live)
    return shifted, weight


@kernel
def _read(
    host, donor, tokens, parts, count, vocab, width, host_stride, host_inner, donor_stride, donor_inner, splits,
    DONOR: tl.constexpr, TOKENS: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    rows, source, live = _place(tokens, count, False, ROWS)
    host_begins = _find(host, source, width, host_stride, host_inner, ALIGNED)
    donor_begins = _find(donor, source, width, donor_stride, donor_inner, ALIGNED)
    at = parts + rows * _PLANES * splits + split
    ids, read = _tile(host_begins, live, split, vocab, TILE)
    chosen = _chosen(host_begins, tokens, rows, live, TOKENS)
    shifted, weight = _leave(at, splits, ids, read, chosen, live)
    if DONOR:
        ids, read = _tile(donor_begins, live, split, vocab, TILE)
        chosen = _chosen(donor_begins, tokens, rows, live, TOKENS)
        other, _ = _leave(at + _MODEL * splits, splits, ids, read, chosen, live)
        at += 2 * _MODEL * splits
        cross = tl.where(weight > 0, weight * other, 0.0).to(tl.float64)
        gap = tl.where(weight > 0, weight * (shifted - other), 0.0).to(tl.float64)
        tl.store(at + _CROSS * splits, tl.sum(cross, 1), mask=live)
        tl.store(at + _GAP * splits, tl.sum(gap, 1), mask=live)


@triton.jit
def _unit(parts, live, splits, SPLITS: tl.constexpr):
    """Of one model: the maximum of each row, the maxima of its tiles, their units in it, and the tile that has it."""
    tops = _part(parts, live, 0, _TOP, splits, SPLITS, -float("inf"))
    top, lane = tl.max(tops, 1, return_indices=True)
    return top, tops, tl.exp(tops - tl.where(top == -float("inf"), 0.0, top)[:, None]), lane


@triton.jit
def _log_mass(parts, live, splits, SPLITS: tl.constexpr):
    """The weight of all tokens but the likeliest, and the log of the whole mass, exact near 0. NaN if no distribution."""
    top, tops, unit, lane = _unit(parts, live, splits, SPLITS)
    mass = _part(parts, live, 0, _MASS, splits, SPLITS, 0.0)
    first = tl.arange(0, SPLITS)[None, :] == lane[:, None]
    held = tl.where(first, _part(parts, live, 0, _REST, splits, SPLITS, 0.0), mass)
    rest = tl.sum(tl.where(unit > 0, unit * held, 0.0), 1)
    sound = (top > -float("inf")) & (top < float("inf"))
    rest = tl.where(sound & (tl.sum(mass, 1) >= 0), rest, float("nan"))
    return rest, tl.where(rest < 1e-5, rest * (1.0 - 0.5 * rest), tl.log(1.0 + rest))


@triton.jit
def _describe(out, parts, live, splits, chosen, SPLITS: tl.constexpr):
    """Store the columns of one model: entropy, log-probability and rank of the token, likeliest token, rest, second."""
    top, tops, unit, lane = _unit(parts, live, splits, SPLITS)
    rest, log_mass = _log_mass(parts, live, splits, SPLITS)
    mass, slope = _part(parts, live, 0, _MASS, splits, SPLITS, 0.0), _part(parts, live, 0, _SLOPE, splits, SPLITS, 0.0)
    total = tl.sum(tl.where(unit > 0, unit * (slope + mass * (tops - top[:, None])), 0.0), 1)
    entropy = log_mass - total / (1.0 + rest)
    first = tl.arange(0, SPLITS)[None, :] == lane[:, None]
    likeliest = tl.sum(tl.where(first, _part(parts, live, 0, _ID, splits, SPLITS, 0.0), 0.0), 1)
    second = tl.max(tl.where(first, _part(parts, live, 0, _SECOND, splits, SPLITS, -float("inf")), tops), 1)
    rank = tl.sum(_part(parts, live, 0, _RANK, splits, SPLITS, 0.0), 1) + 1.0
    chosen = chosen.to(tl.float64)
    tl.store(out, tl.where(entropy < 0, 0.0, entropy).to(tl.float32), mask=live)
    tl.store(out + 1, ((chosen - top) - log_mass).to(tl.float32), mask=live)
    tl.store(out + 2, tl.where(chosen == chosen, rank, float("nan")).to(tl.float32), mask=live)
    tl.store(out + 3, likeliest.to(tl.float32), mask=live)
    tl.store(out + 4, rest.to(tl.float32), mask=live)
    tl.store(out + 5, (tl.exp(second - top) + 0.0 * rest).to(tl.float32), mask=live)


@kernel
def _add_up(
    host, donor, tokens, parts, out, count, width, host_stride, host_inner, donor_stride, donor_inner, splits,
    DONOR: tl.constexpr, TOKENS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    rows, source, live = _place(tokens, count, False, ROWS)
    host_begins = _find(host, source, width, host_stride, host_inner, False)
    donor_begins = _find(donor, source, width, donor_stride, donor_inner, False)
    own, out = parts + rows * _PLANES * splits, out + rows * COLUMNS
    chosen = _chosen(host_begins, tokens, rows, live, TOKENS)
    _describe(out + 2, own, live, splits, chosen, SPLITS)
    if DONOR:
        theirs = own + _MODEL * splits
        chosen = _chosen(donor_begins, tokens, rows, live, TOKENS)
        _describe(out + 8, theirs, live, splits, chosen, SPLITS)
        top, tops, unit, lane = _unit(own, live, splits, SPLITS)
        other_top, other_tops, other_unit, other_lane = _unit(theirs, live, splits, SPLITS)
        rest, log_mass = _log_mass(own, live, splits, SPLITS)
        other_rest, other_log_mass = _log_mass(theirs, live, splits, SPLITS)
        mass = _part(own, live, 0, _MASS, splits, SPLITS, 0.0)
        # Where the donor rules out a whole tile, its sums are in plain units.
        behind = tl.where(other_tops == -float("inf"), 0.0, other_tops) - other_top[:, None]
        both = own + 2 * _MODEL * splits
        cross = _part(both, live, 0, _CROSS, splits, SPLITS, 0.0) + mass * behind
        gap = _part(both, live, 0, _GAP, splits, SPLITS, 0.0) + mass * (tops - top[:, None] - behind)
        ce = other_log_mass - tl.sum(tl.where(unit > 0, unit * cross, 0.0), 1) / (1.0 + rest)
        rkl = tl.sum(tl.where(unit > 0, unit * gap, 0.0), 1) / (1.0 + rest) + other_log_mass - log_mass
        tl.store(out, ce.to(tl.float32), mask=live)
        tl.store(out + 1, tl.where(rkl < 0, 0.0, rkl).to(tl.float32), mask=live)


@kernel
def _diverge(
    host, donor, parts, shares, count, vocab, width, host_stride, host_inner, donor_stride, donor_inner, splits,
    ALIGNED: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    rows, source, live = _place(parts, count, False, ROWS)
    own = parts + rows * _PLANES * splits
    host_begins = _find(host, source, width, host_stride, host_inner, ALIGNED)
    donor_begins = _find(donor, source, width, donor_stride, donor_inner, ALIGNED)
    log_p = _log_probs(host_begins, own, live, split, splits, vocab, SPLITS, TILE)
    log_q = _log_probs(donor_begins, own + _MODEL * splits, live, split, splits, vocab, SPLITS, TILE)
    high = tl.maximum(log_p, log_q)
    # log m = log((p + q) / 2); where both are 0, nothing is added.
    log_m = high + tl.log(tl.exp(log_p - high) + tl.exp(log_q - high)) - _LN2
    p, q = tl.exp(log_p), tl.exp(log_q)
    share = tl.where(p > 0, p * (log_p - log_m), 0.0) + tl.where(q > 0, q * (log_q - log_m), 0.0)
    sound = _log_mass(own, live, splits, SPLITS)[0] + _log_mass(own + _MODEL * splits, live, splits, SPLITS)[0]
    tl.store(shares + rows * splits + split, tl.sum(share.to(tl.float64), 1) / 2 + 0.0 * sound, mask=live)


@triton.jit
def _log_probs(begins, parts, live, split, splits, vocab, SPLITS: tl.constexpr, TILE: tl.constexpr):
    _, read = _tile(begins, live, split, vocab, TILE)
    top, tops, unit, lane = _unit(parts, live, splits, SPLITS)
    _, log_mass = _log_mass(parts, live, splits, SPLITS)
    return read - top.to(tl.float32)[:, None] - log_mass.to(tl.float32)[:, None]


def _read_tiles(host: Tensor, donor: Tensor | None, tokens: Tensor | None, rows: int, tile: int) -> Tensor:
    """The results of each tile of each row."""
    count, vocab = host.shape[:2].numel(), host.shape[2]
    splits = triton.cdiv(vocab, tile)
    parts = torch.empty(count, _PLANES.value, splits, dtype=torch.float64, device=host.device)
    other, ids = host if donor is None else donor, host if tokens is None else tokens  # pointers that are not read then
    _read[triton.cdiv(count, rows), splits](
        host, other, ids, parts, count, vocab, host.shape[1], *host.stride()[:2], *other.stride()[:2], splits,
        DONOR=donor is not None, TOKENS=tokens is not None, ALIGNED=are_aligned(host, other), ROWS=rows, TILE=tile, num_warps=8,
        enable_fp_fusion=False,
    )  # fmt: skip
    return parts


def read_pair(host: Tensor, donor: Tensor | None, tokens: Tensor | None, *, rows: int = 1, tile: int = TILE) -> Tensor:
    """See `operations.read_pair`: `[rows, COLUMNS]`, `ce` and `rkl`, then those of the host, then those of the donor."""
    count = host.shape[:2].numel()
    out = torch.full((count, COLUMNS.value), torch.nan, device=host.device)
    if not count:
        return out
    parts = _read_tiles(host, donor, tokens, rows, tile)
    other, ids = host if donor is None else donor, host if tokens is None else tokens
    splits = parts.shape[-1]
    _add_up[(triton.cdiv(count, rows),)](
        host, other, ids, parts, out, count, host.shape[1], *host.stride()[:2], *other.stride()[:2], splits,
        DONOR=donor is not None, TOKENS=tokens is not None, SPLITS=triton.next_power_of_2(splits), ROWS=rows,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out


def jensen_shannon(host: Tensor, donor: Tensor, *, rows: int = 1, tile: int = TILE) -> Tensor:
    """See `operations.jensen_shannon`."""
    count, vocab = host.shape[:2].numel(), host.shape[2]
    if not count:
        return torch.zeros(0, device=host.device)
    parts = _read_tiles(host, donor, None, rows, tile)
    splits = parts.shape[-1]
    shares = torch.empty(count, splits, dtype=torch.float64, device=host.device)
    _diverge[triton.cdiv(count, rows), splits](
        host, donor, parts, shares, count, vocab, host.shape[1], *host.stride()[:2], *donor.stride()[:2], splits,
        ALIGNED=are_aligned(host, donor), SPLITS=triton.next_power_of_2(splits), ROWS=rows, TILE=tile, num_warps=8,
        enable_fp_fusion=False,
    )  # fmt: skip
    return shares.sum(-1).float()

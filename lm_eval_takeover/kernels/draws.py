# ruff: noqa: RUF059 (to Triton a name has one type in a function, so what is left over has names, too)
"""The race of `method.sampling` in Triton. It gives the same tokens, except where a race ends within a rounding of float32.

The nucleus need not be known before the race. The first pass over all tokens finds the winner. The next one adds up the mass of
the tokens before it, in the order of surprise and id. If that is less than the nucleus holds, the winner is in the nucleus and
wins there, too. If not, the race goes on among the tokens before it. The same pass has found their winner.

    start      of each tile of the vocabulary: its maximum, its mass, its winner
    select     (top-k and top-p together) the surprise of the last of the top-k tokens, one byte a pass
    judge      of each tile: mass and number of the tokens before the winner, and the winner among them
    finish     the token; one program a row goes on, tile by tile, if `JUDGED` passes did not decide

A program is one tile of `ROWS` rows: one row on a GPU. Each adds up the results of the last pass's tiles. Keys are float32 within
a tile, and float64 between tiles, as on a CPU.
Shapes: `R` rows of a program, `T` tokens of a tile, `S` tiles of a row, rounded up to a power of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # tokens of a program
JUDGED = 2  # passes; with top-p 0.95 they decide all rows but one in 800
_BLOCK = 128  # words of a program
_LEVELS = tl.constexpr(4)  # bytes of a surprise
_PLANES = tl.constexpr(5)  # numbers that a tile leaves in each pass, float64
# TOP of start; COUNT, TOTAL of judge.
_WINNER, _LOGIT, _MASS, _TOP, _COUNT, _TOTAL = map(tl.constexpr, (0, 1, 2, 3, 3, 4))


@triton.jit
def _mix(x):
    """fmix32."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _number(ids, word):
    """`x` of `u = (x + 1/2) / 2^32`, uint32."""
    return _mix(_mix(ids.to(tl.uint32) * 0x9E3779B1 + word.to(tl.uint32)) ^ (word >> 32).to(tl.uint32))


@triton.jit
def _wait(x):
    """`E = -ln u` in float32, from `1 - u`, which is near 0 for winners."""
    d = ((0xFFFFFFFF - x).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    s = d / (2.0 - d)
    z = s * s
    near = 2.0 * s * (1.0 + z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9)))))
    return tl.where(d < 0.25, near, -tl.log(tl.maximum(1.0 - d, 1.1641532182693481e-10)))


@triton.jit
def _key(ids, logits, word, top, temperature, greedy):
    """The keys of the race, float64 `[R, S]`: `E / p`; infinite where a token has no weight."""
    weight = tl.exp(tl.div_rn(logits - top[:, None], temperature[:, None])).to(tl.float64)
    wait = -tl.log((_number(ids, word).to(tl.float64) + 0.5) * 2.3283064365386963e-10)
    return tl.where(greedy[:, None], -logits.to(tl.float64), tl.where(weight > 0, wait / weight, float("inf")))


@triton.jit
def _pick(key, ids, logits):
    """Id and logit `[R]` of the least key `[R, ...]`, the first of equal ones. The logit is -inf if all keys are infinite."""
    least, lane = tl.min(key, axis=1, return_indices=True)
    chosen = tl.arange(0, key.shape[1])[None, :] == lane[:, None]
    logit = tl.sum(tl.where(chosen, logits, 0.0), 1)
    return tl.sum(tl.where(chosen, ids, 0), 1), tl.where(least < float("inf"), logit, -float("inf"))


@triton.jit
def _place(asked, count, INDEXED: tl.constexpr, ROWS: tl.constexpr):
    """The rows `[R]` of this program, the rows of logits that they draw from, and whether they are drawn at all."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = rows < count
    source = rows
    if INDEXED:
        source = tl.load(asked + rows, mask=live, other=-1)
    return rows, source, live & (source >= 0)


@triton.jit
def _rule(rules, rows, live, stride, vocab):
    """Temperature, top_p, top_k (0 where it cuts nothing), the log of min_p, and whether a row is greedy: `[R]`."""
    at = rules + rows * stride
    temperature = tl.load(at, mask=live, other=0.0).to(tl.float32)
    top_p, top_k = tl.load(at + 1, mask=live, other=1.0), tl.load(at + 2, mask=live, other=0.0).to(tl.int32)
    min_p = tl.load(at + 3, mask=live, other=0.0)
    floor = tl.where(min_p > 0, tl.log(tl.maximum(min_p, 1e-300)), -float("inf")).to(tl.float32)
    greedy = (temperature == 0) | (top_k == 1)
    return tl.where(greedy, 1.0, temperature), top_p, tl.where(top_k < vocab, top_k, 0), floor, greedy


@triton.jit
def _find(logits, source, width, stride, inner, ALIGNED: tl.constexpr):
    """Where rows `[R]` of logits `[blocks, width, vocab]` begin. Blocks lie `stride` apart, their rows `inner`."""
    begins = logits + source // width * stride + source % width * inner
    if ALIGNED:
        begins = tl.multiple_of(begins, 16)
    return begins


@triton.jit
def _tile(begins, live, split, vocab, TILE: tl.constexpr):
    """Ids `[1, T]` and float32 logits `[R, T]`, -inf behind the vocabulary."""
    ids = (split * TILE + tl.arange(0, TILE))[None, :]
    return ids, tl.load(begins[:, None] + ids, mask=live[:, None] & (ids < vocab), other=-float("inf")).to(tl.float32)


@triton.jit
def _part(parts, live, turn, plane, splits, SPLITS: tl.constexpr, other):
    """Results of the tiles: `[R, S]`. parts: where each row's begin."""
    lanes = tl.arange(0, SPLITS)[None, :]
    at = parts[:, None] + (turn * _PLANES + plane) * splits + lanes
    return tl.load(at, mask=live[:, None] & (lanes < splits), other=other)


@triton.jit
def _leader(parts, live, turn, word, top, temperature, greedy, splits, SPLITS: tl.constexpr):
    """The winner among the tiles' winners: id and logit `[R]`."""
    ids = _part(parts, live, turn, _WINNER, splits, SPLITS, 0.0).to(tl.int32)
    logits = _part(parts, live, turn, _LOGIT, splits, SPLITS, -float("inf")).to(tl.float32)
    return _pick(_key(ids, logits, word, top, temperature, greedy), ids, logits)


@triton.jit
def _edge(counts, live, top_k, LEVELS: tl.constexpr):
    """The first bytes `[R]` of the k-th least surprise, and the number of tokens with lesser ones. counts: `[levels, 256]`."""
    lanes = tl.arange(0, 256)[None, :]
    bits = top_k * 0
    skipped = top_k * 0
    for level in tl.static_range(LEVELS):
        counted = tl.load(counts[:, None] + level * 256 + lanes, mask=live[:, None], other=0)
        byte = tl.sum((tl.cumsum(counted, 1) < (top_k - skipped)[:, None]).to(tl.int32), 1)
        skipped += tl.sum(tl.where(lanes < byte[:, None], counted, 0), 1)
        bits = (bits << 8) | byte
    return bits, skipped


@triton.jit
def _refuses(mass, count, target, scaled, rule):
    """Whether a winner of log-weight `scaled` that has `mass` and `count` tokens before it is cut. False for NaN, the first."""
    temperature, top_p, top_k, floor, greedy = rule
    return (count > 0) & (((top_p < 1) & (mass >= target)) | ((top_k > 0) & (count >= top_k)) | (scaled < floor))


@triton.jit
def _follow(parts, counts, live, word, rule, splits, TURNS: tl.constexpr, SELECTS: tl.constexpr, SPLITS: tl.constexpr):
    """The races after `TURNS` judgements, `[R]` each: winner, its logit, whether it is refused, maximum, target."""
    temperature, top_p, top_k, floor, greedy = rule
    top = tl.max(_part(parts, live, 0, _TOP, splits, SPLITS, -float("inf")), 1).to(tl.float32)
    winner, logit = _leader(parts, live, 0, word, top, temperature, greedy, splits, SPLITS)
    refused = live & ((top_p < 1) | (top_k > 0) | (floor > -float("inf"))) & (greedy == 0)
    target = top_p * 0.0
    for turn in tl.static_range(1, TURNS + 1):
        if turn == 1:
            target = tl.sum(_part(parts, refused, 1, _TOTAL, splits, SPLITS, 0.0), 1)
            if SELECTS:
                both = refused & (top_k > 0) & (top_p < 1)
                bits, skipped = _edge(counts, both, top_k, _LEVELS)
                last = tl.exp(-bits.to(tl.float32, bitcast=True)).to(tl.float64)
                target += tl.where(both, (top_k - skipped) * last, 0.0)
            target *= top_p
        mass = tl.sum(_part(parts, refused, turn, _MASS, splits, SPLITS, 0.0), 1)
        count = tl.sum(_part(parts, refused, turn, _COUNT, splits, SPLITS, 0.0), 1).to(tl.int32)
        refused = refused & _refuses(mass, count, target, tl.div_rn(logit - top, temperature), rule)
        other, its_logit = _leader(parts, refused, turn, word, top, temperature, greedy, splits, SPLITS)
        winner, logit = tl.where(refused, other, winner), tl.where(refused, its_logit, logit)
    return winner, logit, refused, top, target


@triton.jit
def _before(ids, logits, word, winner, logit, top, temperature):
    """Of a tile, `[R]` each: the mass and number of the tokens before the winner, and the winner among them with its logit."""
    scaled = tl.div_rn(logits - top[:, None], temperature[:, None])
    edge = tl.div_rn(logit - top, temperature)[:, None]
    weight = tl.exp(scaled)
    before = (scaled > edge) | ((scaled == edge) & (ids < winner[:, None]))
    key = tl.where(before & (weight > 0), _wait(_number(ids, word)) / weight, float("inf"))
    first, its_logit = _pick(key, ids, logits)
    return tl.sum(tl.where(before, weight, 0.0).to(tl.float64), 1), tl.sum(before.to(tl.int32), 1), first, its_logit


# Kernels are compiled once for every number of rows and every layout of tensors; `ALIGNED` says where loads may be vectors.
kernel = triton.jit(
    do_not_specialize=(
        "count", "width", "splits", "rule_stride", "stride", "inner", "host_stride", "host_inner", "donor_stride", "donor_inner",
    ),
    do_not_specialize_on_alignment=(
        "asked", "words", "rules", "parts", "counts", "tokens", "masses", "out", "shares", "keys", "positions", "logits", "host",
        "donor",
    ),
)  # fmt: skip


@kernel
def _start(
    logits, asked, words, rules, parts, count, vocab, width, stride, inner, rule_stride, splits,
    TURNS: tl.constexpr, INDEXED: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    rows, source, live = _place(asked, count, INDEXED, ROWS)
    begins = _find(logits, source, width, stride, inner, ALIGNED)
    if tl.max(live.to(tl.int32), 0) > 0:
        temperature, top_p, top_k, floor, greedy = _rule(rules, rows, live, rule_stride, vocab)
        ids, read = _tile(begins, live, split, vocab, TILE)
        word = tl.load(words + rows, mask=live, other=0)[:, None]
        top = tl.max(read, 1)
        weight = tl.exp(tl.div_rn(read - tl.where(top == -float("inf"), 0.0, top)[:, None], temperature[:, None]))
        key = tl.where(weight > 0, _wait(_number(ids, word)) / weight, float("inf"))
        winner, logit = _pick(tl.where(greedy[:, None], -read, key), ids, read)
        at = parts + rows * TURNS * _PLANES * splits + split
        tl.store(at + _WINNER * splits, winner.to(tl.float64), mask=live)
        tl.store(at + _LOGIT * splits, logit.to(tl.float64), mask=live)
        tl.store(at + _MASS * splits, tl.sum(weight.to(tl.float64), 1), mask=live)
        tl.store(at + _TOP * splits, top.to(tl.float64), mask=live)


@kernel
def _select(
    logits, asked, rules, parts, counts, count, vocab, width, stride, inner, rule_stride, splits,
    LEVEL: tl.constexpr, TURNS: tl.constexpr, INDEXED: tl.constexpr, ALIGNED: tl.constexpr, SPLITS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    rows, source, live = _place(asked, count, INDEXED, ROWS)
    begins = _find(logits, source, width, stride, inner, ALIGNED)
    temperature, top_p, top_k, floor, greedy = _rule(rules, rows, live, rule_stride, vocab)
    live = live & (top_p < 1) & (top_k > 0) & (greedy == 0)
    if tl.max(live.to(tl.int32), 0) > 0:
        ids, read = _tile(begins, live, tl.program_id(1), vocab, TILE)
        top = tl.max(_part(parts + rows * TURNS * _PLANES * splits, live, 0, _TOP, splits, SPLITS, -float("inf")), 1)
        scaled = tl.div_rn(read - top.to(tl.float32)[:, None], temperature[:, None])
        bits = tl.abs(scaled).to(tl.int32, bitcast=True)
        here = live[:, None] & (ids < vocab)
        own = counts + rows * _LEVELS * 256
        if LEVEL > 0:
            known, skipped = _edge(own, live, top_k, LEVEL)
            here = here & ((bits >> (32 - 8 * LEVEL)) == known[:, None])
        # Not by the mask of `histogram`: Triton 3.6 and 3.7 reorder a mask and its values in different ways.
        byte = tl.arange(0, ROWS)[:, None] * 256 + tl.where(here, (bits >> (24 - 8 * LEVEL)) & 255, 0)
        lanes = tl.arange(0, 256)[None, :]
        counted = tl.reshape(tl.histogram(tl.ravel(byte), ROWS * 256), (ROWS, 256))
        counted -= tl.where(lanes == 0, tl.sum((here == 0).to(tl.int32), 1)[:, None], 0)
        at = own[:, None] + LEVEL * 256 + lanes
        tl.atomic_add(at, counted, mask=live[:, None] & (counted > 0), sem="relaxed")


@kernel
def _judge(
    logits, asked, words, rules, parts, counts, count, vocab, width, stride, inner, rule_stride, splits,
    TURN: tl.constexpr, TURNS: tl.constexpr, SELECTS: tl.constexpr, INDEXED: tl.constexpr, ALIGNED: tl.constexpr,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    rows, source, live = _place(asked, count, INDEXED, ROWS)
    begins = _find(logits, source, width, stride, inner, ALIGNED)
    rule = _rule(rules, rows, live, rule_stride, vocab)
    temperature, top_p, top_k, floor, greedy = rule
    word = tl.load(words + rows, mask=live, other=0)[:, None]
    own, counts = parts + rows * TURNS * _PLANES * splits, counts + rows * _LEVELS * 256
    winner, logit, refused, top, target = _follow(own, counts, live, word, rule, splits, TURN - 1, SELECTS, SPLITS)
    if tl.max(refused.to(tl.int32), 0) > 0:
        ids, read = _tile(begins, refused, split, vocab, TILE)
        mass, number, first, its_logit = _before(ids, read, word, winner, logit, top, temperature)
        at = own + TURN * _PLANES * splits + split
        tl.store(at + _WINNER * splits, first.to(tl.float64), mask=refused)
        tl.store(at + _LOGIT * splits, its_logit.to(tl.float64), mask=refused)
        tl.store(at + _MASS * splits, mass, mask=refused)
        tl.store(at + _COUNT * splits, number.to(tl.float64), mask=refused)
        if TURN == 1:
            scaled = tl.div_rn(read - top[:, None], temperature[:, None])
            weight = tl.exp(scaled)
            if SELECTS:
                both = refused & (top_k > 0) & (top_p < 1)
                edge, skipped = _edge(counts, both, top_k, _LEVELS)
                inside = tl.abs(scaled).to(tl.int32, bitcast=True) < edge[:, None]
                weight = tl.where(inside | (both[:, None] == 0), weight, 0.0)
            tl.store(at + _TOTAL * splits, tl.sum(weight.to(tl.float64), 1), mask=refused)


@kernel
def _finish(
    logits, asked, words, rules, parts, counts, tokens, masses, count, vocab, width, stride, inner, rule_stride, splits,
    TURNS: tl.constexpr, SELECTS: tl.constexpr, INDEXED: tl.constexpr, ALIGNED: tl.constexpr, SPLITS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    rows, source, live = _place(asked, count, INDEXED, ROWS)
    begins = _find(logits, source, width, stride, inner, ALIGNED)
    rule = _rule(rules, rows, live, rule_stride, vocab)
    temperature, top_p, top_k, floor, greedy = rule
    word = tl.load(words + rows, mask=live, other=0)[:, None]
    own, counts = parts + rows * TURNS * _PLANES * splits, counts + rows * _LEVELS * 256
    winner, logit, refused, top, target = _follow(own, counts, live, word, rule, splits, TURNS - 1, SELECTS, SPLITS)
    if TURNS > 1:
        while tl.max(refused.to(tl.int32), 0) > 0:
            mass, number, least = top_p * 0.0, top_k * 0, top_p * 0.0 + float("inf")
            first, its_logit = winner, logit
            for split in range(splits):
                ids, read = _tile(begins, refused, split, vocab, TILE)
                more, some, candidate, candidate_logit = _before(ids, read, word, winner, logit, top, temperature)
                key = tl.min(_key(candidate[:, None], candidate_logit[:, None], word, top, temperature, greedy), 1)
                first = tl.where(key < least, candidate, first)
                its_logit = tl.where(key < least, candidate_logit, its_logit)
                least = tl.where(key < least, key, least)
                mass += more
                number += some
            refused = refused & _refuses(mass, number, target, tl.div_rn(logit - top, temperature), rule)
            winner, logit = tl.where(refused, first, winner), tl.where(refused, its_logit, logit)
    tops = _part(own, live, 0, _TOP, splits, SPLITS, -float("inf")).to(tl.float32)
    shares = tl.exp(tl.div_rn(tops - top[:, None], temperature[:, None]))
    total = tl.sum(shares * _part(own, live, 0, _MASS, splits, SPLITS, 0.0), 1)
    tl.store(tokens + rows, tl.where(live, tl.minimum(winner, vocab - 1), 0).to(tl.int64), mask=rows < count)
    sound = tl.where(live, 1.0 + 0.0 * total, 1.0)
    tl.store(masses + rows, tl.where(greedy, sound, total), mask=rows < count)


def are_aligned(*blocks: Tensor) -> bool:
    """Whether rows of logits `[blocks, width, vocab]` begin where a GPU can load 16 bytes at once.

    False for every batch if 16 does not divide the vocabulary: its kernels are compiled once, too.
    """
    sizes = (size for part in blocks for size in (part.shape[2], part.data_ptr(), *part.stride()[:2]))
    return not any(size % 16 for size in sizes)


def draw(
    logits: Tensor,
    words: Tensor,
    table: Tensor,
    truncates: bool,
    selects: bool,
    asked: Tensor | None,
    *,
    rows: int = 1,
    tile: int = TILE,
    judged: int = JUDGED,
) -> tuple[Tensor, Tensor]:
    """See `operations.draw`. Two launches, `JUDGED` more where a row is truncated, and four more where one is in both ways."""
    count, vocab = len(words), logits.shape[2]
    splits, programs = triton.cdiv(vocab, tile), triton.cdiv(count, rows)
    turns = 1 + judged * truncates
    parts = torch.empty(count, turns, _PLANES.value, splits, dtype=torch.float64, device=logits.device)
    tokens, masses = torch.empty_like(words), torch.empty_like(words, dtype=torch.float64)
    counts = torch.zeros(count if selects else 0, _LEVELS.value, 256, dtype=torch.int32, device=logits.device)
    if not count:
        return tokens, masses
    sizes = (count, vocab, logits.shape[1], *logits.stride()[:2], table.stride(0) if len(table) > 1 else 0, splits)
    where = words if asked is None else asked  # without INDEXED a pointer that nothing reads
    given = {"TURNS": turns, "INDEXED": asked is not None, "ROWS": rows, "TILE": tile, "num_warps": 8}
    given |= {"ALIGNED": are_aligned(logits), "enable_fp_fusion": False}  # versions of Triton have other defaults
    more = given | {"SPLITS": triton.next_power_of_2(splits)}
    _start[programs, splits](logits, where, words, table, parts, *sizes, **given)
    for level in range(_LEVELS.value * selects):
        _select[programs, splits](logits, where, table, parts, counts, *sizes, **more, LEVEL=level)
    for turn in range(1, turns):
        _judge[programs, splits](logits, where, words, table, parts, counts, *sizes, **more, SELECTS=selects, TURN=turn)
    _finish[(programs,)](logits, where, words, table, parts, counts, tokens, masses, *sizes, **more, SELECTS=selects)
    return tokens, masses


@kernel
def _philox(keys, positions, words, count, BLOCK: tl.constexpr):
    """`W(seed, r, j, t)`: numpy's Philox4x64-10. Its counter is the position, so no table of words is needed."""
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

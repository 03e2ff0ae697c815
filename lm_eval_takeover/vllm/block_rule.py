"""`block_size=auto`: fused, or drafts of how many tokens, from the concurrency and the sizes of the two models.

Time of one token of one row, in units of a pass of the guide over few rows. A pass reads all weights, and is free of charge for
up to `READ_TOGETHER` tokens, above which arithmetic counts:

    fused        (1 + b) * load(n)                               b = parameters of the base / of the guide, n rows
    drafts of k  (k b load(n) + load(n (k + 1))) / E             E = (1 - (1 - g)^k) / g tokens stand of a draft
    load(t)      max(1, t / READ_TOGETHER)

`g` is the probability that a position ends a draft. The shortest k of the least time is taken, and fused where none is better.
"""

from dataclasses import dataclass

READ_TOGETHER = {"cuda": 256, "cpu": 4}  # tokens: an H200 does about 200 operations in the time that it reads a byte
LONGEST = 16
LEAST_GAIN = 0.9  # of fused's time; below that, the more robust engine
CONCURRENCY = 256  # vLLM's own, where none is given


@dataclass(frozen=True, slots=True)
class Choice:
    """The length of a draft, 1 for fused, and why."""

    block: int
    reason: str


def load(tokens: float, read_together: int) -> float:
    """The cost of a pass over so many tokens."""
    return max(1.0, tokens / read_together)


def token_time(block: int, *, ratio: float, rows: int, ends: float, read_together: int) -> float:
    """Time of a token of one row; see above. `block` 1 is fused."""
    if block == 1:
        return (1 + ratio) * load(rows, read_together)
    stands = (1 - (1 - ends) ** block) / ends
    return (block * ratio * load(rows, read_together) + load(rows * (block + 1), read_together)) / stands


def choose_block(*, ratio: float, rows: int, ends: float, device: str) -> Choice:
    """ratio: parameters of the base over those of the guide. rows: samples at a time. ends: `g`."""
    together = READ_TOGETHER.get(device, READ_TOGETHER["cpu"])
    times = {
        block: token_time(block, ratio=ratio, rows=rows, ends=ends, read_together=together)
        for block in range(1, LONGEST + 1)
    }
    best = min(times, key=lambda block: (times[block], block))
    gain = times[best] / times[1]
    if best == 1 or gain > LEAST_GAIN:
        return Choice(1, f"fused: {rows} samples at a time on {device}, where no draft is much faster")
    return Choice(
        best,
        f"drafts of {best} tokens: {rows} samples at a time, a base of {ratio:.0%} of the guide, {gain:.0%} of fused's time",
    )

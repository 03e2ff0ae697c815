"""`block_size=auto`: how many tokens vLLM drafts, by how many requests it writes at a time, from the table of costs.

`decoding/costs.py` says what a step costs and how many tokens it writes. Without drafts both models read one token of each
request, as in the fused pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lm_eval_takeover.decoding.costs import StepCosts

LONGEST = 16
CONCURRENCY = {"cuda": 1024, "cpu": 256}  # vLLM's own on large GPUs, and on CPUs
LEAST_GAIN = 0.9  # of the fused pair's time with one request; above that, the more robust engine
MOST_LOSS = 1.1  # of its time with any number of requests
# Seconds a layer, by device: in CUDA graphs, and without. vLLM captures none of a draft model's passes. See docs/gpu.md.
LAUNCH = {"cuda": (1.2e-5, 8.6e-5), "cpu": (6e-4, 6e-4)}


def choose_lengths(costs: StepCosts, most: int) -> list[int]:
    """How many tokens to draft with 1, 2 … `most` requests: the least seconds a token, never more than with fewer requests."""
    lengths, longest = list[int](), LONGEST
    for rows in range(1, most + 1):
        longest = int(costs.token_seconds(np.arange(longest + 1), rows).argmin())
        lengths.append(longest)
    return lengths


def list_ranges(lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """vLLM's `num_speculative_tokens_per_batch_size`: the first and the last number of requests, and their drafts' length."""
    starts = [rows for rows in range(len(lengths)) if not rows or lengths[rows] != lengths[rows - 1]]
    ends = [*starts[1:], len(lengths)]
    return [(start + 1, end, lengths[start]) for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Choice:
    """Drafted tokens by the number of requests, as `list_ranges` has them; none where nobody drafts. And why."""

    ranges: list[tuple[int, int, int]]
    reason: str

    @property
    def longest(self) -> int:
        """Tokens of the longest draft, 1 where nobody drafts."""
        return self.ranges[0][2] if self.ranges else 1


def choose_drafts(costs: StepCosts, most: int, *, fixed: bool = False) -> Choice:
    """Drafts, or the fused pair, for up to `most` requests at a time. `fixed`: one length, that of the most requests."""
    lengths = choose_lengths(costs, most)
    lengths = lengths[-1:] * most if fixed else lengths
    times = [costs.token_seconds(length, rows) / costs.fused_seconds(rows) for rows, length in enumerate(lengths, 1)]
    if lengths[0] < 2 or times[0] > LEAST_GAIN:
        return Choice([], "fused, since drafts are not much faster with one request")
    if max(times) > MOST_LOSS:
        rows = times.index(max(times)) + 1
        return Choice(
            [], f"fused, since drafts need {max(times):.0%} of its time with {rows} requests (max_num_seqs={most})"
        )
    drafts = ", ".join(f"{length} from {start}" for start, _, length in list_ranges(lengths))
    shares = f"{times[0]:.0%} with 1, {times[-1]:.0%} with {most}"
    return Choice(
        list_ranges(lengths), f"tokens of a draft by the number of requests: {drafts}; of fused's time {shares}"
    )

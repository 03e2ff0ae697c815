"""A quantile sketch of scores: bounded memory, exact values, the same answer every time.

Manku, Rajagopalan and Lindsay (SIGMOD 1998), with one buffer per weight. A full buffer is sorted. Every second value stays, with
twice the weight, in turns. Until a buffer is full the sketch is all the scores. (Libraries do not seed KLL sketches.)
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

CAPACITY = 2**17  # values of one weight

Values = NDArray[np.float32]


class QuantileSketch:
    """Scores seen one batch at a time. `count` and `total` (their sum, in nats) are exact."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.count, self.total = 0, 0.0
        self._buffers: list[list[Values]] = [[]]  # by level: values of weight 2**level, in pieces
        self._upper = [False]  # by level: which half the next compaction keeps
        self._lost = 0  # the largest distance, in scores, between a rank and the sketch's answer

    @property
    def rank_error(self) -> float:
        """A bound on |rank of an answer - rank asked for| / count; 0 while nothing was thrown away."""
        return self._lost / self.count if self.count else 0.0

    def add(self, scores: ArrayLike) -> None:
        """Add scores of any shape. Raises ValueError for NaN or infinite ones."""
        values = np.asarray(scores, dtype=np.float32).reshape(-1)
        if not np.isfinite(values).all():
            raise ValueError(f"{int((~np.isfinite(values)).sum())} of {len(values)} scores are NaN or infinite")
        self.count += len(values)
        self.total += float(values.sum(dtype=np.float64))
        for start in range(0, len(values), self.capacity):
            self._put(0, values[start : start + self.capacity])

    def _put(self, level: int, values: Values) -> None:
        while level >= len(self._buffers):
            self._buffers.append([])
            self._upper.append(False)
        self._buffers[level].append(values.copy())
        if sum(map(len, self._buffers[level])) < self.capacity:
            return
        held = np.sort(np.concatenate(self._buffers[level]))
        even = len(held) - len(held) % 2
        self._buffers[level] = [held[even:]] if even < len(held) else []
        half = held[int(self._upper[level]) : even : 2]
        self._upper[level] = not self._upper[level]
        self._lost += 2**level  # between two neighbours of a pair the rank is off by one value of this weight
        self._put(level + 1, half)

    def _ranked(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """All values in order and their weights."""
        values = [piece for pieces in self._buffers for piece in pieces]
        weights = [np.full(len(p), 2**level) for level, pieces in enumerate(self._buffers) for p in pieces]
        joined, weight = np.concatenate(values), np.concatenate(weights)
        order = np.argsort(joined, kind="stable")
        return joined[order].astype(np.float64), weight[order]

    def quantiles_and_tails(self, q: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Quantiles in nats, as `numpy.quantile`, and the mean of the scores above each; if there is none, the quantile."""
        values, weights = self._ranked()
        ends = np.cumsum(weights)
        position = np.asarray(q, dtype=np.float64) * (self.count - 1)
        below = np.floor(position)
        low, high = (values[np.searchsorted(ends, rank, side="right")] for rank in (below, np.ceil(position)))
        step = position - below
        # numpy's own formula, which is exact at both ends
        quantiles = np.where(step < 0.5, low + (high - low) * step, high - (high - low) * (1 - step))
        above = np.searchsorted(values, quantiles, side="right")
        weight_above = np.concatenate([ends[-1] - np.concatenate([[0], ends]), [0]])[above]
        sums = np.concatenate([np.cumsum((values * weights)[::-1])[::-1], [0.0]])[above]
        return quantiles, np.where(weight_above > 0, sums / np.maximum(weight_above, 1), quantiles)

"""The tokens of one sample as arrays, for analyses of scores and traces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_takeover.runs.evidence import column_of
from lm_eval_takeover.runs.parquet import Name


@dataclass(slots=True)
class SampleTokens:
    """One sample: arrays `[tokens]` by column, in order of positions. Caches what several analyses need."""

    name: Name
    columns: Mapping[str, NDArray[Any]]
    _ascending: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    _cumulative: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["token_id"])

    def score(self, name: str) -> NDArray[np.float32]:
        """`s_t` `[tokens]`; `entropy` is the base's."""
        return self.columns[column_of(name)]

    def ascending(self, score: str) -> NDArray[np.float32]:
        """`s_(1) <= … <= s_(n)`."""
        if score not in self._ascending:
            self._ascending[score] = np.sort(self.score(score))
        return self._ascending[score]

    def cumulative(self, score: str) -> NDArray[np.float64]:
        """Sums of the smallest scores: `[tokens + 1]`, the first one 0."""
        if score not in self._cumulative:
            self._cumulative[score] = np.cumsum(np.append(0.0, self.ascending(score)))
        return self._cumulative[score]

    def has_mass(self, score: str) -> bool:
        """Whether the score's mass can be divided: some of it, a finite amount, and nowhere a negative one."""
        return bool(self.ascending(score)[0] >= 0 and 0 < self.cumulative(score)[-1] < np.inf)

    def has_peaks(self, score: str) -> bool:
        """Whether the top 1 % are determined: no more tokens than these share the largest score, as those of 0 or 1 do."""
        ascending, count = self.ascending(score), ceil_percent(len(self), 1)
        return len(self) <= count or bool(ascending[-count - 1] < ascending[-1])

    def tops(self, score: str, percents: tuple[int, ...]) -> NDArray[np.bool_]:
        """The `max(1, ceil(percent %))` largest scores as masks `[percents, tokens]`; of equal ones the earlier."""
        values, counts = self.score(score), [max(1, ceil_percent(len(self), percent)) for percent in percents]
        edges = self.ascending(score)[[len(self) - count for count in counts]]
        masks = values >= edges[:, None]
        for mask, count, edge in zip(masks, counts, edges, strict=True):
            if (more := int(np.count_nonzero(mask)) - count) > 0:
                mask[np.flatnonzero(values == edge)[-more:]] = False
        return masks


def ceil_percent(count: int, percent: int) -> int:
    """`ceil(percent % of count)`, exactly."""
    return -(-count * percent // 100)

"""The tokens of a run, one sample at a time: memory is bounded by the largest of its files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lm_eval_takeover.lab.score_files import column_of, make_schema
from lm_eval_takeover.runs.parquet import NAME_COLUMNS, Name, read_table, reading
from lm_eval_takeover.runs.run_reader import split_samples

ENTROPY = "entropy"
SCHEMA = make_schema()
T = TypeVar("T")


@dataclass(slots=True)
class SampleTokens:
    """One sample: arrays `[tokens]` by column, in order of positions. Caches what several analyses need."""

    name: Name
    columns: Mapping[str, NDArray[Any]]
    _known: dict[Any, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["token_id"])

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """Compute a value once for several analyses."""
        if key not in self._known:
            self._known[key] = compute()
        known: T = self._known[key]
        return known

    def score(self, name: str) -> NDArray[np.float32]:
        """`s_t` `[tokens]`; `entropy` is the base's."""
        return self.columns[column_of(name)]

    def ascending(self, score: str) -> NDArray[np.float32]:
        """`s_(1) <= … <= s_(n)`."""
        return self.once(("ascending", score), lambda: np.sort(self.score(score)))

    def cumulative(self, score: str) -> NDArray[np.float64]:
        """Sums of the smallest scores: `[tokens + 1]`, the first one 0."""
        return self.once(("cumulative", score), lambda: np.cumsum(np.append(0.0, self.ascending(score))))

    def has_mass(self, score: str) -> bool:
        """Whether the score's mass can be divided: some of it, a finite amount, and nowhere a negative one."""
        return bool(self.ascending(score)[0] >= 0 and 0 < self.cumulative(score)[-1] < np.inf)

    def has_peaks(self, score: str) -> bool:
        """Whether the top 1 % are determined: no more tokens than these share the largest score, as those of 0 or 1 do."""
        ascending, count = self.ascending(score), ceil_percent(len(self), 1)
        return len(self) <= count or bool(ascending[-count - 1] < ascending[-1])

    def tops(self, score: str, percents: tuple[int, ...]) -> NDArray[np.bool_]:
        """The `max(1, ceil(percent %))` largest scores as masks `[percents, tokens]`; of equal ones the earlier."""
        return self.once(("tops", score, percents), lambda: self._find_tops(score, percents))

    def _find_tops(self, score: str, percents: tuple[int, ...]) -> NDArray[np.bool_]:
        values, counts = self.score(score), [max(1, ceil_percent(len(self), percent)) for percent in percents]
        edges = self.ascending(score)[[len(self) - count for count in counts]]
        masks = values >= edges[:, None]
        for mask, count, edge in zip(masks, counts, edges, strict=True):
            if (more := int(np.count_nonzero(mask)) - count) > 0:
                mask[np.flatnonzero(values == edge)[-more:]] = False
        return masks

    def top(self, score: str, percent: int) -> NDArray[np.bool_]:
        """One of `tops`: `[tokens]`."""
        return np.asarray(self.tops(score, (percent,))[0])


def ceil_percent(count: int, percent: int) -> int:
    """`ceil(percent % of count)`, exactly."""
    return -(-count * percent // 100)


def read_scored_samples(paths: Iterable[Path], scores: Sequence[str], more: Sequence[str] = ()) -> Iterator[SampleTokens]:
    """The samples of scores files, each of which has whole ones, with these scores and columns.

    Raises RunDirError for a file that cannot be read.
    """
    columns = list(dict.fromkeys(["token_id", *map(column_of, scores), *more]))
    for path in paths:
        with reading(path, "scores"):
            table = read_table(path, SCHEMA, [*NAME_COLUMNS, *columns])
            for name, start, stop in split_samples(table):
                yield make_sample(name, table.slice(start, stop - start), columns)


def make_sample(name: Name, table: pa.Table, columns: Sequence[str]) -> SampleTokens:
    """The rows of one sample as arrays; nulls of integers are -1."""
    arrays = {}
    for column in columns:
        values = table[column]
        if values.null_count and pa.types.is_integer(values.type):
            values = values.fill_null(-1)
        if pa.types.is_dictionary(values.type):
            values = values.cast(pa.string())
        arrays[column] = values.to_numpy()
    return SampleTokens(name, arrays)

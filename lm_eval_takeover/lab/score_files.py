"""Scores files: `RUN_DIR/scores/*.parquet`, one row per token of the stored samples, both models teacher-forced on the text.

    task, doc_id, sample, position, token_id, a column for each registered score, base_entropy, guide_entropy, base_logprob,
    guide_logprob, base_rank, guide_rank, base_top, guide_top

The score `entropy` is the column `base_entropy`. The base hosts, so `ce` is `-sum p_base log p_guide`. Ranks are those of the
token that stands there, 1 for the likeliest. Tops are the ids of the likeliest tokens. Scores, entropies and log-probabilities
are in nats, float32 as computed. A file is one row group, written whole or not at all. It is read one sample at a time.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs import parquet
from lm_eval_takeover.runs.layout import SCORES_FOLDER
from lm_eval_takeover.runs.parquet import NAME_COLUMNS, Name
from lm_eval_takeover.runs.run_reader import split_samples
from lm_eval_takeover.storage.schema import check

_FLOATS = ("base_entropy", "guide_entropy", "base_logprob", "guide_logprob")
_INTEGERS = ("base_rank", "guide_rank", "base_top", "guide_top")
_METADATA = "takeover_scores"
ENTROPY = "entropy"
T = TypeVar("T")


class Scorer(TypedDict):
    """A model of a scores file."""

    id: str
    dtype: str
    revision: NotRequired[str | None]


@dataclass(frozen=True, slots=True)
class ScoresHeader:
    """What the files of one folder share: the models, and the scores with the digests of plug-ins."""

    base: Scorer
    guide: Scorer
    scores: dict[str, str | None]

    def describe(self) -> str:
        names = [f"{role}={m['id']} ({m['dtype']})" for role, m in (("base", self.base), ("guide", self.guide))]
        return ", ".join([*names, *self.scores])


def column_of(score: str) -> str:
    """The column of a scores file that holds this score."""
    return "base_entropy" if score == ENTROPY else score


def make_schema(scores: Sequence[str] = ()) -> pa.Schema:
    """Of a file with these scores."""
    return pa.schema(
        [
            *parquet.NAME_FIELDS,
            pa.field("token_id", pa.int32()),
            *(pa.field(name, pa.float32()) for name in dict.fromkeys([*map(column_of, scores), *_FLOATS])),
            *(pa.field(name, pa.int32()) for name in _INTEGERS),
        ]
    )


def list_score_files(folder: Path) -> list[Path]:
    """The scores files of a run_dir, the oldest first."""
    return sorted(path for path in (folder / SCORES_FOLDER).glob("*.parquet") if not path.name.startswith("."))


def read_header(path: Path) -> tuple[ScoresHeader, set[bytes]]:
    """The header of a scores file, and the keys of its texts. Raises RunDirError for a foreign file."""
    with parquet.reading(path, "scores"):
        with parquet.open_parquet(path) as file:
            metadata = json.loads((file.schema_arrow.metadata or {})[_METADATA.encode()])
        header = check(metadata["header"], ScoresHeader, "header")
        return header, {bytes.fromhex(key) for key in metadata["keys"]}


def find_scored(files: Sequence[Path], keys: Set[bytes]) -> set[bytes]:
    """The texts in these files of one folder. Raises RunDirError for a file that has none of `keys`, or another header."""
    found = set[bytes]()
    for path in files:
        header, scored = read_header(path)
        if header != read_header(files[0])[0] or (scored and scored.isdisjoint(keys)) or scored & found:
            raise RunDirError(f"'{path}' holds scores of another run, or of another pair; move it away")
        found |= scored
    return found


def write_scores(folder: Path, header: ScoresHeader, samples: Mapping[bytes, "SampleTokens"]) -> Path:
    """A new file with these samples by key, whole or not at all."""
    number = max((int(path.stem) for path in list_score_files(folder) if path.stem.isdigit()), default=0) + 1
    path = folder / SCORES_FOLDER / f"{number:06d}.parquet"
    schema = make_schema(list(header.scores))
    columns = parquet.name_tokens([sample.name for sample in samples.values()], [*map(len, samples.values())])
    for name in schema.names[len(columns) :]:
        columns[name] = np.concatenate([sample.columns[name] for sample in samples.values()])
    table = parquet.make_table(columns, schema)
    metadata = json.dumps({"header": asdict(header), "keys": [key.hex() for key in samples]})
    parquet.write_parquet(path, table, {_METADATA: metadata}, rows=len(table))
    return path


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
        with parquet.reading(path, "scores"):
            table = parquet.read_table(path, make_schema(), [*NAME_COLUMNS, *columns])
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

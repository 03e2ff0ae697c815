"""Scores files: `RUN_DIR/scores/*.parquet`, one row per token of the stored samples, both models teacher-forced on the text.

    task, doc_id, sample, position, token_id, a column for each registered score, base_entropy, guide_entropy, base_logprob,
    guide_logprob, base_rank, guide_rank, base_top, guide_top, guide_top_rank, shared_top5, shared_top10

The score `entropy` is the column `base_entropy`. The base hosts, so `ce` is `-sum p_base log p_guide`. Ranks are those of the
token that stands there, 1 for the likeliest. Tops are the ids of the likeliest tokens. `guide_top_rank` is the rank of the
guide's likeliest token under the base. `shared_top5` counts the tokens that are among the 5 likeliest of both models. Scores,
entropies and log-probabilities are in nats, float32 as computed. A file is one row group, written whole or not at all.
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs import parquet
from lm_eval_takeover.runs.layout import SCORES_FOLDER
from lm_eval_takeover.runs.parquet import Name
from lm_eval_takeover.storage.schema import check

_FLOATS = ("base_entropy", "guide_entropy", "base_logprob", "guide_logprob")
_INTEGERS = ("base_rank", "guide_rank", "base_top", "guide_top", "guide_top_rank", "shared_top5", "shared_top10")
_METADATA = "takeover_scores"


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
    return "base_entropy" if score == "entropy" else score


@dataclass(frozen=True, slots=True)
class ScoredSample:
    """One text with its columns; `values` are arrays `[tokens]` by name, as `teacher_forcing.compare` gives them."""

    key: bytes
    name: Name
    tokens: Sequence[int]
    values: Mapping[str, NDArray[Any]]


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


def place_scores(folder: Path, name: str = "") -> Path:
    """The folder of a run_dir's scores, or of those by another guide, which have a name."""
    return folder / "-".join(filter(None, (SCORES_FOLDER, name)))


def list_score_files(folder: Path, name: str = "") -> list[Path]:
    """The scores files of a run_dir, the oldest first."""
    return sorted(path for path in place_scores(folder, name).glob("*.parquet") if not path.name.startswith("."))


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


def write_scores(folder: Path, header: ScoresHeader, samples: Sequence[ScoredSample], name: str = "") -> Path:
    """A new file with these samples, whole or not at all."""
    number = max((int(path.stem) for path in list_score_files(folder, name) if path.stem.isdigit()), default=0) + 1
    path = place_scores(folder, name) / f"{number:06d}.parquet"
    schema = make_schema(list(header.scores))
    columns = parquet.name_tokens([sample.name for sample in samples], [len(sample.tokens) for sample in samples])
    columns["token_id"] = np.concatenate([np.asarray(sample.tokens) for sample in samples])
    for name in schema.names[len(columns) :]:
        columns[name] = np.concatenate([sample.values[name] for sample in samples])
    table = parquet.make_table(columns, schema)
    metadata = json.dumps({"header": asdict(header), "keys": [sample.key.hex() for sample in samples]})
    parquet.write_parquet(path, table, {_METADATA: metadata}, rows=len(table))
    return path

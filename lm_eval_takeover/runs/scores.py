"""Scores files: `RUN_DIR/scores/*.parquet`, one row per token of the stored samples, both models teacher-forced on the text.

    task, doc_id, sample, position, token_id, a column for each registered score, base_entropy, guide_entropy, base_logprob,
    guide_logprob, base_rank, guide_rank, base_top, guide_top, guide_top_rank, shared_top5, shared_top10

The score `entropy` is the column `base_entropy`. The base hosts, so `ce` is `-sum p_base log p_guide`. Ranks are those of the
token that stands there, 1 for the likeliest. Tops are the ids of the likeliest tokens. `guide_top_rank` is the rank of the
guide's likeliest token under the base. `shared_top5` counts the tokens that are among the 5 likeliest of both models. Scores,
entropies and log-probabilities are in nats, float32 as computed. A file is written whole, one row group of whole samples; its
metadata name what it holds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lm_eval_takeover.runs.layout import scores_folder
from lm_eval_takeover.runs.parquet import reading
from lm_eval_takeover.runs.run_reader import Name
from lm_eval_takeover.storage.whole_files import write_whole

_FLOATS = ("base_entropy", "guide_entropy", "base_logprob", "guide_logprob")
_INTEGERS = ("base_rank", "guide_rank", "base_top", "guide_top", "guide_top_rank", "shared_top5", "shared_top10")
_METADATA = b"takeover_scores"


@dataclass(frozen=True, slots=True)
class ScoresHeader:
    """What the files of one folder share: the models (id, revision, dtype), and the scores with the digests of plug-ins."""

    base: dict[str, Any]
    guide: dict[str, Any]
    scores: dict[str, str | None]

    def describe(self) -> str:
        """Both models and the scores in words."""
        names = [
            f"{role}={model['id']} ({model['dtype']})" for role, model in (("base", self.base), ("guide", self.guide))
        ]
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
            pa.field("task", pa.dictionary(pa.int32(), pa.string())),
            *(pa.field(name, pa.int32()) for name in ("doc_id", "sample", "position", "token_id")),
            *(pa.field(name, pa.float32()) for name in dict.fromkeys([*map(column_of, scores), *_FLOATS])),
            *(pa.field(name, pa.int32()) for name in _INTEGERS),
        ]
    )


def list_score_files(folder: Path) -> list[Path]:
    """The scores files of a run_dir, the oldest first."""
    return sorted(path for path in scores_folder(folder).glob("*.parquet") if not path.name.startswith("."))


def read_header(path: Path) -> tuple[ScoresHeader, set[bytes]]:
    """What a file was written with, and the keys of its texts. Raises RunDirError for one that is none of ours."""
    with reading(path, "scores"):
        found = json.loads((pq.read_schema(path).metadata or {})[_METADATA])
        header = ScoresHeader(**found["header"])
        _ = header.base["id"], header.base["dtype"], header.guide["id"], header.guide["dtype"], dict(header.scores)
        return header, {bytes.fromhex(key) for key in found["keys"]}


def write_scores(folder: Path, header: ScoresHeader, samples: Sequence[ScoredSample]) -> Path:
    """A new file with these samples, whole or not at all."""
    number = max((int(path.stem) for path in list_score_files(folder) if path.stem.isdigit()), default=0) + 1
    path = scores_folder(folder) / f"{number:06d}.parquet"
    keys = [sample.key.hex() for sample in samples]
    metadata = {_METADATA: json.dumps({"header": asdict(header), "keys": keys})}
    table = make_table(samples, list(header.scores)).replace_schema_metadata(metadata)
    write_whole(path, lambda stream: write_table(table, stream))
    return path


def write_table(table: pa.Table, stream: Any) -> None:
    """One row group."""
    pq.write_table(
        table,
        stream,
        compression="zstd",
        use_dictionary=["task"],
        column_encoding={
            **{field.name: "BYTE_STREAM_SPLIT" for field in table.schema if pa.types.is_floating(field.type)},
            **dict.fromkeys(("doc_id", "sample", "position"), "DELTA_BINARY_PACKED"),
        },
        write_statistics=["task", "doc_id", "sample"],
        row_group_size=max(len(table), 1),
    )


def make_table(samples: Sequence[ScoredSample], scores: Sequence[str]) -> pa.Table:
    """One row per token of these samples."""
    schema = make_schema(scores)
    lengths = [len(sample.tokens) for sample in samples]
    tasks = list(dict.fromkeys(sample.name[0] for sample in samples))
    columns: dict[str, Any] = {
        "task": pa.DictionaryArray.from_arrays(
            np.repeat([tasks.index(sample.name[0]) for sample in samples], lengths).astype(np.int32),
            pa.array(tasks, pa.string()),
        ),
        "doc_id": np.repeat([sample.name[1] for sample in samples], lengths),
        "sample": np.repeat([sample.name[2] for sample in samples], lengths),
        "position": np.concatenate([np.arange(length) for length in lengths]),
        "token_id": np.concatenate([np.asarray(sample.tokens) for sample in samples]),
    }
    for name in schema.names[len(columns) :]:
        columns[name] = np.concatenate([sample.values[name] for sample in samples])
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type, safe=False)
        for field, column in ((field, columns[field.name]) for field in schema)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)

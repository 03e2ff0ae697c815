"""Parquet files of a run_dir, written from its journals for people: prompts, traces, scores. Nothing of ours reads them back.

Each is written whole; docs/runs.md describes the columns. Their bytes are compared with digests that a journal keeps.
"""

import io
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.runs.evidence import Columns
from lm_eval_takeover.runs.journal import Damaged, Journal, Prompt, Sample, finding_damage, read_prompt
from lm_eval_takeover.runs.layout import PROMPTS, PROMPTS_LOCK, list_journals
from lm_eval_takeover.storage.digests import digest_path
from lm_eval_takeover.storage.files import Lock, write_whole
from lm_eval_takeover.tasks.context import WithheldPrompt

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

Name = tuple[str, int, int]  # task, document, sample
NAME_COLUMNS = ("task", "doc_id", "sample")
NAME_FIELDS = (
    pa.field("task", pa.dictionary(pa.int32(), pa.string())),
    *(pa.field(name, pa.int32()) for name in ("doc_id", "sample", "position")),
)  # which token a row is
TRACE_SCHEMA = pa.schema(
    [
        *NAME_FIELDS,
        pa.field("token_id", pa.int32()),
        pa.field("chosen_from", pa.dictionary(pa.int32(), pa.string())),
        *(pa.field(name, pa.float32()) for name in ("score", "base_entropy", "window_mean", "host_logprob", "donor_logprob")),
        pa.field("donor_rank", pa.int32()),
        pa.field("host_token_id", pa.int32()),
    ]
)
PART_TOKENS = 2**19  # of a file
T = TypeVar("T")


@finding_damage()
def tabulate(samples: Sequence[Sample], texts: Sequence[Columns], schema: pa.Schema) -> pa.Table:
    """One row per token of these samples, whose columns are given. NaN, and -1 of an integer, are null. Raises Damaged."""
    lengths = [sample.tokens for sample in samples]
    columns = {name: np.repeat([getattr(sample, name) for sample in samples], lengths) for name in ("doc_id", "sample")}
    columns["task"] = np.repeat(np.array([sample.task for sample in samples], object), lengths)
    columns["position"] = np.concatenate([*map(np.arange, lengths)])
    columns |= {name: np.concatenate([text[name] for text in texts]) for name in texts[0]}
    return pa.table([_convert(columns[field.name], field.type) for field in schema], schema=schema)


def _convert(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    return pa.array(values, kind, mask=values < 0 if pa.types.is_integer(kind) else np.isnan(values))


def write_parquet(path: Path, table: pa.Table, metadata: Mapping[str, str] | None = None) -> None:
    """Write a table whole or not at all."""
    kinds = {field.name: field.type for field in table.schema}
    encodings = dict.fromkeys((name for name in kinds if pa.types.is_floating(kinds[name])), "BYTE_STREAM_SPLIT")
    encodings |= dict.fromkeys(kinds.keys() & {"doc_id", "sample", "position"}, "DELTA_BINARY_PACKED")
    buffer = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(metadata),
        buffer,
        compression="zstd",
        use_dictionary=[name for name, kind in kinds.items() if pa.types.is_dictionary(kind)],
        column_encoding=encodings,
        write_statistics=[name for name in NAME_COLUMNS if name in kinds],
        row_group_size=2**17,
    )
    write_whole(path, lambda stream: stream.write(buffer.getbuffer()))


def write_part(
    journal: Journal, path: Path, made_of: str, tabulated: Callable[[], pa.Table], metadata: Mapping[str, str]
) -> None:
    """Write a file of samples, of which `made_of` is a digest, unless the journal knows its bytes as made of them."""
    name = f"{path.parent.name}/{path.name}".encode()
    with suppress(OSError):
        if (name, f"{made_of} {digest_path(path)}".encode()) in journal.read_evidence("part", [name]):
            return
    write_parquet(path, tabulated(), metadata)
    journal.add_evidence("part", {name: f"{made_of} {digest_path(path)}".encode()})


def split_parts(items: Iterable[T], count: Callable[[T], int]) -> Iterator[list[T]]:
    """In groups of some `PART_TOKENS` tokens, in their order."""
    group, tokens = list[T](), 0
    for item in items:
        group.append(item)
        tokens += count(item)
        if tokens >= PART_TOKENS:
            yield group
            group, tokens = [], 0
    if group:
        yield group


# Prompts

PROMPT_SCHEMA = pa.schema({
    "task": pa.string(), "doc_id": pa.int32(), "prompt": pa.string(), "prompt_ids": pa.list_(pa.int32()),
    "problem": pa.string(), "answer": pa.string(),
})  # fmt: skip


def make_prompt(instance: "Instance", request: Request, doc_id: int) -> Prompt:
    doc, withheld = instance.doc if isinstance(instance.doc, Mapping) else {}, isinstance(instance.args[0], WithheldPrompt)
    problem, answer = (None if doc.get(name) is None else str(doc[name]) for name in ("problem", "answer"))
    return {
        "task": instance.task_name or "none",
        "doc_id": doc_id,
        "prompt": None if withheld else instance.args[0],
        "prompt_ids": list(request.prompt),
        "problem": None if withheld else problem,
        "answer": answer,
    }


def write_prompts(folder: Path) -> None:
    """The file of all prompts that the journals have, in the order of tasks and documents. Raises OSError."""
    prompts = dict[str, Prompt]()
    with Lock(folder / PROMPTS_LOCK, wait=True):
        for path in list_journals(folder):
            unreadable = suppress(Damaged, RunDirError, sqlite3.Error, OSError)  # its own rank repairs it
            with unreadable, closing(Journal(path, read_only=True, check=False)) as journal:
                prompts |= {digest: read_prompt(content) for digest, content in journal.prompts().items()}
        rows = sorted(prompts.values(), key=lambda row: (row["task"], row["doc_id"], row["prompt_ids"]))
        write_parquet(folder / PROMPTS, pa.Table.from_pylist(rows, schema=PROMPT_SCHEMA))

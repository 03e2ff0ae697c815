"""The prompts of a run, `RUN_DIR/prompts.parquet`: who reads the run needs neither task files nor data sets.

    task, doc_id, prompt, prompt_ids, problem, answer

One row per prompt of a document. `prompt` and `problem` are null where a task withholds its questions; the ids stay, for teacher
forcing. Ranks and commands add to one file, which is written whole each time. A journal has the digests of its rows.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.runs.layout import PROMPTS, PROMPTS_LOCK
from lm_eval_takeover.runs.parquet import read_table, reading, write_parquet
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.files import Lock
from lm_eval_takeover.tasks.verdicts import find_doc_id

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

logger = logging.getLogger(__name__)

SCHEMA = pa.schema({
    "task": pa.string(), "doc_id": pa.int32(), "prompt": pa.string(), "prompt_ids": pa.list_(pa.int32()),
    "problem": pa.string(), "answer": pa.string(),
})  # fmt: skip

Prompt = dict[str, Any]  # a row


def make_prompt(instance: "Instance", request: Request) -> Prompt:
    """The row of a request's prompt."""
    from lm_eval_takeover.tasks.gpqa import WITHHOLDING  # with lm-eval and datasets, which readers of a run do not need

    task, doc = instance.task_name or "none", instance.doc if isinstance(instance.doc, Mapping) else {}
    withheld = task in WITHHOLDING
    return {
        "task": task,
        "doc_id": find_doc_id(instance.task_name, instance.doc_id),
        "prompt": None if withheld else instance.args[0],
        "prompt_ids": list(request.prompt),
        "problem": None if withheld else _as_text(doc.get("problem")),
        "answer": _as_text(doc.get("answer")),
    }


def read_prompts(folder: Path) -> list[Prompt]:
    """All rows; none where there is no file. Raises RunDirError for one that cannot be read."""
    path = folder / PROMPTS
    if not path.exists():
        return []
    with reading(path, "prompts"):
        rows: list[Prompt] = read_table(path, SCHEMA).to_pylist()
        return rows


def add_prompts(folder: Path, rows: Sequence[Prompt]) -> None:
    """Add rows that are not there yet, in the order of tasks and documents. Raises OSError."""
    lock = Lock(folder / PROMPTS_LOCK, wait=True)
    try:
        for unfinished in folder.glob(f".{PROMPTS}.*"):  # of a run that was killed
            unfinished.unlink()
        try:
            stored = read_prompts(folder)
        except RunDirError as error:
            logger.warning("%s; it is written again", error)
            stored = []
        merged = {digest_of(row): row for row in (*rows, *stored)}
        if len(merged) == len(stored):
            return
        ordered = sorted(merged.values(), key=lambda row: (row["task"], row["doc_id"], row["prompt_ids"]))
        write_parquet(folder / PROMPTS, pa.Table.from_pylist(ordered, schema=SCHEMA))
    finally:
        lock.release()


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)

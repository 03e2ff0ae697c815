"""The takeovers of a run as preference pairs, in TRL's format: `prompt` is the text so far, `chosen` and `rejected` are tokens.

https://huggingface.co/docs/trl/dataset_formats#preference
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.runs.run_reader import RunReader, read_run_folder
from lm_eval_takeover.storage.regular_files import open_input
from lm_eval_takeover.storage.whole_files import write_whole

_COLUMNS = ("token_id", "chosen_from", "score", "host_token_id")
_ROWS = 1000  # of a row group: every row holds the whole text before it
SCHEMA = pa.schema(
    [
        *(
            pa.field(name, pa.string())
            for name in ("prompt", "chosen", "rejected", "host_token", "donor_token", "task")
        ),
        *(pa.field(name, pa.int32()) for name in ("doc_id", "sample", "position", "host_token_id", "donor_token_id")),
        pa.field("score", pa.float32()),
        pa.field("effect", pa.float32()),
    ]
)
Name = tuple[str, int, int, int]  # task, document, sample, position


def export(folder: Path, out: Path, effects: Path | None) -> tuple[list[Path], list[str]]:
    """`(files, notes)`: `pairs.jsonl` and `pairs.parquet`. Raises ArgumentError for a run without such takeovers, OSError."""
    run = read_run_folder(folder)
    tokenizer, known = run.load_tokenizer(), _read_effects(effects) if effects else {}
    paths = [out / "pairs.jsonl", out / "pairs.parquet"]
    count = 0

    def write_both(lines: Any, groups: Any) -> None:
        nonlocal count
        pairs = list_pairs(run, tokenizer, known)
        with pq.ParquetWriter(groups, SCHEMA, compression="zstd") as writer:
            while rows := list(islice(pairs, _ROWS)):
                lines.writelines(json.dumps(row).encode() + b"\n" for row in rows)
                writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
                count += len(rows)
        if not count:
            raise ArgumentError(
                f"run_dir='{folder}' has no takeover by another token than the host's whose problem may be shown"
            )

    write_whole(paths[0], lambda lines: write_whole(paths[1], lambda groups: write_both(lines, groups)))
    notes = [f"{count:,} pairs, {len(known):,} positions with a measured effect"]
    withheld = sorted({row["task"] for rows in run.prompts.values() for row in rows if row["prompt"] is None})
    return paths, notes + [f"{task}: left out, since its questions are withheld" for task in withheld]


def list_pairs(run: RunReader, tokenizer: Any, effects: Mapping[Name, float]) -> Iterator[dict[str, Any]]:
    """A row per takeover that wrote another token. The guide's token is `chosen`, but where its measured effect is negative."""
    for one, table in run.read_traces(_COLUMNS):
        prompt = run.find_prompt(one)["prompt"]
        if prompt is None:
            continue
        tokens, scores, hosts = (table[name].to_pylist() for name in ("token_id", "score", "host_token_id"))
        for place, writer in enumerate(table["chosen_from"].to_pylist()):
            if writer != run.donor or hosts[place] is None or hosts[place] == tokens[place]:
                continue
            effect = effects.get((*one.name, place))
            host_token, donor_token = (tokenizer.decode([token]) for token in (hosts[place], tokens[place]))
            better = (donor_token, host_token) if effect is None or effect >= 0 else (host_token, donor_token)
            yield {
                "prompt": prompt + tokenizer.decode(tokens[:place]),
                "chosen": better[0],
                "rejected": better[1],
                "host_token": host_token,
                "donor_token": donor_token,
                "task": one.task,
                "doc_id": one.doc_id,
                "sample": one.sample,
                "position": place,
                "host_token_id": hosts[place],
                "donor_token_id": tokens[place],
                "score": scores[place],
                "effect": effect,
            }


def _read_effects(folder: Path) -> dict[Name, float]:
    """By position. Raises ArgumentError for a folder that `effects` did not write."""
    path = folder / "effects.csv"
    try:
        with io.TextIOWrapper(open_input(path), newline="") as stream:
            return {
                (row["task"], int(row["doc_id"]), int(row["sample"]), int(row["position"])): float(row["effect"])
                for row in csv.DictReader(stream)
                if row["kind"] == "takeover"
            }
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise ArgumentError(
            f"--effects '{folder}' cannot be read: {error}; expected what lm-eval-takeover effects was given as --out"
        ) from error

"""Positions of a run as preference pairs for DPO: `chosen` and `rejected` go on from the same text.

By default they are whole continuations from the forced token to the end, so an end token is right there. With `tokens_only` they
are the single tokens; a trainer that adds an end token behind those would train 'stop here', so `train_pairs.py` goes with them.
https://huggingface.co/docs/trl/dataset_formats#preference
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lm_eval_takeover.backends import Backend
from lm_eval_takeover.commands._output import writing
from lm_eval_takeover.commands._stored_pair import Readers, restore_arguments
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.lab.analysis.effects import TAKEOVER, measure_position
from lm_eval_takeover.lab.effects.tables import TEXTS
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.runs.run_reader import RunReader, read_run_folder
from lm_eval_takeover.storage.regular_files import open_input
from lm_eval_takeover.storage.whole_files import write_text, write_whole

TRAINING = Path(__file__).with_name("train_pairs.py")
_ROWS = 1000  # of a row group: every row holds the whole text before it
_TEXT = ("prompt", "chosen", "rejected")
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in _TEXT),
        *(pa.field(f"{name}_ids", pa.list_(pa.int32())) for name in _TEXT),
        pa.field("position", pa.int32()),
        *(pa.field(name, pa.float32()) for name in ("effect", "low", "high")),
        pa.field("kind", pa.string()),
        pa.field("task", pa.string()),
        *(pa.field(name, pa.int32()) for name in ("doc_id", "sample")),
        pa.field("same_ids", pa.bool_()),
    ]
)
_WEIGHTS = [pa.field(f"{name}_weights", pa.list_(pa.float32())) for name in _TEXT[1:]]


Name = tuple[str, int, int]  # task, document, sample
Pairs = Mapping[Name, Sequence[Mapping[str, Any]]]  # fields of the files, but for those of the text before


def export(options: argparse.Namespace) -> int:
    """Write the pairs as JSONL and parquet, and `train_pairs.py`. Returns the exit status; raises ArgumentError without pairs."""
    run, effects = read_run_folder(options.run_dir), options.effects
    if effects is None and not options.tokens_only:
        raise ArgumentError("--effects is missing: give what effects had as --out; or --tokens_only, single tokens")
    pairs = list_taken(run) if effects is None else list_measured(read_texts(effects), options)
    tokenizer, count, same = run.load_tokenizer(own_class=True), 0, 0
    paths = [options.out / name for name in ("pairs.jsonl", "pairs.parquet", TRAINING.name)]

    def write_both(lines: Any, groups: Any) -> None:
        nonlocal count, same
        rows = describe_pairs(run, tokenizer, pairs)
        schema = SCHEMA if score is None else pa.schema([*SCHEMA, *_WEIGHTS])
        with pq.ParquetWriter(groups, schema, compression="zstd") as writer:
            while part := list(islice(rows, _ROWS)):
                if readers and score:
                    add_weights(part, readers.backend, score)
                lines.writelines(json.dumps(row).encode() + b"\n" for row in part)
                writer.write_table(pa.Table.from_pylist(part, schema=schema))
                count, same = count + len(part), same + sum(row["same_ids"] for row in part)
        if not count:
            way_out = "lower --min_effect, --confidence, or measure more" if effects else "give a run with takeovers"
            raise ArgumentError(f"'{effects or options.run_dir}' has no pair; {way_out}")

    score = registered.get(options.weights) if options.weights else None
    readers = Readers(restore_arguments(run, {})) if options.weights else None
    with writing("out", options.out):
        try:
            write_whole(paths[0], lambda lines: write_whole(paths[1], lambda groups: write_both(lines, groups)))
        finally:
            if readers:
                readers.close()
        write_text(paths[2], TRAINING.read_text())
    print(f"{count:,} pairs; the tokenizer gives the same ids for {same:,}; for others train on the ids", file=sys.stderr)
    for task in sorted({row["task"] for rows in run.prompts.values() for row in rows if row["prompt"] is None}):
        print(f"{for_terminal(task)}: left out, since its questions are withheld", file=sys.stderr)
    for path in paths:
        print(for_terminal(str(path)))
    return 0


def add_weights(rows: Sequence[dict[str, Any]], backend: Backend, score: Score) -> None:
    """`chosen_weights` and `rejected_weights`: the score at each token of the text, as both models read it."""
    asked = [(row, side) for row in rows for side in _TEXT[1:]]
    longest = max(len(row["prompt_ids"]) + len(row[f"{side}_ids"]) for row, side in asked)
    for start in range(0, len(asked), size := backend.fit_rows(longest)):
        part = asked[start : start + size]
        before, texts = [row["prompt_ids"] for row, _ in part], [row[f"{side}_ids"] for row, side in part]
        values_of_batch = backend.compare([score], before, texts, [f"pair at token {row['position']}" for row, _ in part])
        for (row, side), values in zip(part, values_of_batch, strict=True):
            row[f"{side}_weights"] = values[score.name].tolist()


def list_taken(run: RunReader) -> Pairs:
    """Single tokens of all takeovers that wrote another token than the host's."""
    pairs: dict[Name, list[dict[str, Any]]] = {}
    nothing = dict.fromkeys(("effect", "low", "high"))
    for sample, table in run.read_traces(["token_id", "chosen_from", "host_token_id"]):
        rows = zip(*(table[name].to_pylist() for name in ("token_id", "chosen_from", "host_token_id")), strict=True)
        pairs[sample.name] = [
            {"position": place, "kind": TAKEOVER, "chosen_ids": [token], "rejected_ids": [host], **nothing}
            for place, (token, writer, host) in enumerate(rows)
            if writer == run.donor and host not in (None, token)
        ]
    return pairs


def read_texts(folder: Path) -> pl.DataFrame:
    """The continuations with the kind of their position. Raises ArgumentError for a folder that `effects` did not write."""
    names = ["task", "doc_id", "sample", "position"]
    try:
        with open_input(folder / "effects.csv") as table, open_input(folder / TEXTS) as texts:
            kinds = pl.read_csv(table).select(*names, "kind")
            return pl.read_parquet(texts).join(kinds, on=names, maintain_order="left")
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ArgumentError(
            f"--effects '{folder}' cannot be read: {error}; expected the --out of an effects command that has ended"
        ) from error


def list_measured(texts: pl.DataFrame, options: argparse.Namespace) -> Pairs:
    """A pair for each position whose effect is large enough and known to have its sign."""
    pairs: dict[Name, list[dict[str, Any]]] = {}
    for (task, doc_id, sample, place), group in texts.group_by(["task", "doc_id", "sample", "position"], maintain_order=True):
        sides = {str(writer): side.to_dicts() for (writer,), side in group.group_by(["writer"])}
        verdicts = {writer: [text["correct"] for text in side] for writer, side in sides.items()}
        effect = measure_position(verdicts["host"], verdicts["donor"], options.confidence)
        if abs(effect["effect"]) < options.min_effect or effect["low"] <= 0 <= effect["high"]:
            continue
        better, worse = ("donor", "host") if effect["effect"] > 0 else ("host", "donor")
        both = choose_texts(sides[better], sides[worse])
        if options.tokens_only:
            both = sides[better][0]["token_ids"][:1], sides[worse][0]["token_ids"][:1]
        if both:
            pair = {"position": place, "kind": group["kind"][0], "chosen_ids": both[0], "rejected_ids": both[1]}
            pairs.setdefault((task, doc_id, sample), []).append(pair | effect)
    return pairs


def choose_texts(better: Sequence[Mapping[str, Any]], worse: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]] | None:
    """A correct text and an incorrect one that both came to their end, of one continuation where that is possible."""
    good = [text for text in better if text["correct"] and not text["truncated"]]
    bad = [text for text in worse if not text["correct"] and not text["truncated"]]
    if not good or not bad:
        return None
    numbers = {text["continuation"]: text for text in bad}
    first = next((text for text in good if text["continuation"] in numbers), good[0])
    return first["token_ids"], numbers.get(first["continuation"], bad[0])["token_ids"]


def describe_pairs(run: RunReader, tokenizer: Any, pairs: Pairs) -> Iterator[dict[str, Any]]:
    """A row of the files for each pair, in the order of the texts."""
    samples = [sample for sample in run.answered if sample.name in pairs]
    for sample, table in run.read_traces(["token_id"], samples):
        prompt, tokens = run.find_prompt(sample), table["token_id"].to_pylist()
        for pair in pairs[sample.name] if prompt["prompt"] is not None else ():
            before = [*prompt["prompt_ids"], *tokens[: pair["position"]]]
            texts, same = write_as_text(tokenizer, before, [pair["chosen_ids"], pair["rejected_ids"]])
            named = zip((*_TEXT, "task", "doc_id", "sample"), (*texts, *sample.name), strict=True)
            known: dict[str, Any] = {**dict(named), **pair, "prompt_ids": before, "same_ids": same}
            yield {name: known[name] for name in SCHEMA.names}


def write_as_text(tokenizer: Any, before: list[int], after: Sequence[list[int]]) -> tuple[list[str], bool]:
    """`([text before, texts after], whether the tokenizer reads them as these ids)`, as a trainer does that adds its first token.

    What stands behind is cut from the whole, so that a leading blank survives tokenizers that drop that of a first word.
    """
    begin = tokenizer("")["input_ids"]
    begin = begin[:1] if begin and before[: len(begin[:1])] == begin[:1] else []

    def decode(ids: list[int]) -> str:
        text = tokenizer.decode(ids[len(begin) :], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    prompt = decode(before)
    texts = [decode([*before, *ids])[len(prompt) :] for ids in after]
    wholes = [(prompt, before), *((prompt + text, [*before, *ids]) for text, ids in zip(texts, after, strict=True))]
    return [prompt, *texts], all(tokenizer(text)["input_ids"] == ids for text, ids in wholes)

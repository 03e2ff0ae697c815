"""Prints one answer with its takeovers marked."""

import argparse
from collections.abc import Callable
from itertools import groupby

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.runs.run_reader import Answered, RunReader, read_run_folders

Decode = Callable[[list[int]], str]
_IDS = ("token_id", "host_token_id")
TAKEOVER, REPLACED = "bold reverse", "dim strike"


def show(options: argparse.Namespace) -> int:
    """Returns the exit status. Raises ArgumentError for a sample that the run does not have."""
    runs = read_run_folders([options.run_dir])
    run = next((run for run in runs if run.takeover.get("window") is not None), runs[0])  # of a comparison the guided row
    sample = find_sample(run, options.task, options.doc, options.sample)
    ((_, trace),) = run.read_traces([*_IDS, "chosen_from"], [sample])
    stored = sample.stored
    heading = (
        f"{run.label} (policy={run.policy}), task {sample.task}, doc {sample.doc_id}, sample {sample.sample}: "
        f"{stored.tokens:,} tokens, {stored.takeovers:,} takeovers ({stored.takeovers / max(stored.tokens, 1):.1%})"
        f"{', cut off by the token limit' if stored.truncated else ''}"
    )
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(for_terminal(heading), style="bold"))
    prompts = run.prompts.get((sample.task, sample.doc_id), [])
    if prompts and prompts[0]["problem"]:
        console.print(Text(for_terminal(prompts[0]["problem"]), style="dim"))
    ids = [token for name in _IDS for token in trace[name].to_pylist() if token is not None]
    decode = run.load_decoder(options.tokenizer, ids)
    console.print(mark_takeovers(decode, trace, run.donor if run.written_by is None else None))
    gold = prompts[0]["answer"] if prompts else None
    verdict = f"{sample.outcome or 'not verified'}: {sample.answer or 'no answer'} (gold: {gold or 'not known'})"
    console.print(Text(for_terminal(verdict), "bold"))
    return 0


def find_sample(run: RunReader, task: str | None, doc_id: int, sample: int) -> Answered:
    """The sample of this name. Raises ArgumentError with what there is."""
    if task is None and len(run.tasks) > 1:
        raise ArgumentError(f"--task is missing: the run has {', '.join(run.tasks)}")
    name = task or run.tasks[0]
    if name not in run.tasks:
        raise ArgumentError(f"--task '{name}' is not in the run, which has {', '.join(run.tasks)}")
    known = {(row.doc_id, row.sample): row for row in run.answered if row.task == name}
    if not known:
        raise ArgumentError(f"task {name} has no finished sample in '{run.folder}'; wait for it, or run the same command again")
    if found := known.get((doc_id, sample)):
        return found
    docs, samples = sorted({doc for doc, _ in known}), sorted(number for doc, number in known if doc == doc_id)
    if samples:
        raise ArgumentError(f"--sample {sample} is not there; doc {doc_id} has {samples[0]} to {samples[-1]}")
    raise ArgumentError(f"--doc {doc_id} is not there; task {name} has {len(docs)} from {docs[0]} to {docs[-1]}")


def mark_takeovers(decode: Decode, trace: pa.Table, donor: str | None) -> Text:
    """The text with each takeover in brackets, beside the host's own token. Without a donor nothing is marked.

    A text with brackets of its own has marks of another kind. A line that a takeover ends is broken behind its mark.
    """
    text = Text()
    rows = list(zip(*(trace[name].to_pylist() for name in (*_IDS, "chosen_from")), strict=True))
    own = decode([token for token, _, _ in rows])
    brackets = "⟦⟧" if "[" in own or "]" in own else "[]"
    for taken, stretch in groupby(rows, key=lambda row: donor is not None and row[2] == donor):
        if not taken:
            text.append(for_terminal(decode([token for token, _, _ in stretch])))
            continue
        for token, host, _ in stretch:
            text.append_text(_mark(decode, token, host, brackets))
    return text


def _mark(decode: Decode, token: int, host: int | None, brackets: str) -> Text:
    written = decode([token])
    shown = _strip(written)
    marked = Text(written[: len(written) - len(shown)]).append(brackets[0]).append(_inline(shown), style=TAKEOVER)
    if host is not None and host != token:
        marked.append("|").append(_inline(_strip(decode([host]))), style=REPLACED)
    return marked.append(brackets[1] + "\n" * written.count("\n"))


def _strip(text: str) -> str:
    """Without the spaces in front, unless there is nothing else."""
    return text.lstrip(" ") or text


def _inline(text: str) -> str:
    return for_terminal(text).replace("\n", "\\n")

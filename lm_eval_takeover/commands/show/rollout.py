"""Prints answers with their takeovers marked, and what the gate saw."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby, zip_longest
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.runs.evidence import Columns
from lm_eval_takeover.runs.layout import SAMPLES
from lm_eval_takeover.runs.run_reader import Answered, RunReader, read_run_folders

Decode = Callable[[list[int]], str]
_IDS = ("token_id", "host_token_id")
_BESIDE = {"rescued": "base", "missed": "guide"}  # whose row says which problems are solved
TAKEOVER, REPLACED = "bold reverse", "dim strike"


class _Console(Console):
    """One that leaves a closed pipe to the command, as other commands do."""

    def on_broken_pipe(self) -> None:
        raise  # what rich has caught as it calls this


def show(options: argparse.Namespace) -> int:
    """Returns the exit status. Raises ArgumentError for a sample that the run does not have."""
    runs = read_run_folders([options.run_dir])
    run = next((run for run in runs if run.takeover.get("window") is not None), runs[0])  # of a comparison the guided row
    console = _Console(highlight=False, soft_wrap=True)
    if options.kind is None:
        _print_answer(console, run, find_sample(run, options.task, options.doc or 0, options.sample or 0), options)
        return 0
    named = options.task, options.doc, options.sample
    asked = [one for one in run.answered if all(want in (None, own) for want, own in zip(named, one.name, strict=True))]
    judged = [one for one in asked if one.outcome and one.correct == (options.kind in ("right", "rescued"))]
    if (role := _BESIDE.get(options.kind)) is not None:
        solved = _list_solved(run, role, options.kind)
        judged = [one for one in judged if (one.name[:2] in solved) == (options.kind == "missed")]
    by_problem = [list(samples) for _, samples in groupby(judged, key=lambda one: one.name[:2])]
    # The first one of each problem, then the second ones.
    chosen = [one for samples in zip_longest(*by_problem) for one in samples if one]
    for sample in chosen[: options.number]:
        _print_answer(console, run, sample, options)
    counts = f"{len(chosen):,} of {len(asked):,} answers are {options.kind}"
    console.print(counts + f"; --number N shows more than {options.number}" * (len(chosen) > options.number))
    return 0


def _list_solved(run: RunReader, role: str, kind: str) -> set[tuple[str, int]]:
    """The problems that a model alone solves, in its row beside this one. Raises ArgumentError where there is none."""
    folder = run.folder.absolute()
    beside = read_run_folders([folder.parent.parent]) if folder.name == SAMPLES else []
    row = next((one for one in beside if one.written_by == role), None)
    if row is None:
        raise ArgumentError(f"--{kind}: no row of the {role} beside '{run.folder}'; give a folder of compare that has one")
    return {one.name[:2] for one in row.answered if one.correct}


def _print_answer(console: Console, run: RunReader, sample: Answered, options: argparse.Namespace) -> None:
    """Heading, problem, answer and verdict; with its scores, where answers of a kind were asked for."""
    ((_, trace),) = run.read_traces([*_IDS, "chosen_from", "score", "window_mean"], [sample])
    stored = sample.stored
    heading = (
        f"{run.label} (policy={run.policy}), task {sample.task}, doc {sample.doc_id}, sample {sample.sample}: "
        f"{stored.tokens:,} tokens, {stored.takeovers:,} takeovers ({stored.takeovers / max(stored.tokens, 1):.1%})"
        f"{', cut off by the token limit' if stored.truncated else ''}"
    )
    console.print(Text(for_terminal(heading), style="bold"))
    prompt = run.find_prompt(sample)
    if prompt["problem"]:
        console.print(Text(for_terminal(prompt["problem"]), style="dim"))
    decode, donor = run.load_tokenizer(options.tokenizer).decode, run.donor if run.written_by is None else None
    console.print(mark_takeovers(decode, trace, donor))
    verdict = f"{sample.outcome or 'not verified'}: {sample.answer or 'no answer'} (gold: {prompt['answer'] or 'not known'})"
    console.print(Text(for_terminal(verdict), "bold"))
    if options.kind and donor and run.takeover.get("tau") is not None:
        top = partial(_tell_top, run, sample, f"{donor}_top", decode)
        console.print(Text("\n".join(list_scores(decode, trace, donor, run.takeover, top)) + "\n"))


def list_scores(
    decode: Decode, trace: Columns, donor: str, gate: Mapping[str, Any], tell_top: Callable[[int], str]
) -> Iterator[str]:
    """A line for each takeover: its place, its score beside what it had to exceed, its mark. Then two on the highest other."""
    yield f"tau {gate['tau']:.3f}, {gate['score']} at each takeover beside what it had to exceed:"
    scores, means, taken = trace["score"].astype(float), trace["window_mean"].astype(float), trace["chosen_from"] == donor
    least = np.fmax(gate["tau"], (gate["kappa"] or 0) * means)

    def tell(at: int) -> str:
        mark = _mark(decode, int(trace["token_id"][at]), int(trace["host_token_id"][at]), "[]").plain.strip()
        sign = ">" if scores[at] > least[at] else "<"
        return f"token {at:,}: {scores[at]:.3f} {sign} {least[at]:.3f}  {mark}"

    yield from map(tell, np.flatnonzero(taken & ~np.isnan(scores)).tolist())
    kept = np.where(taken | np.isnan(scores), -np.inf, scores)
    if (highest := kept.max(initial=-np.inf)) > -np.inf:
        at = int(kept.argmax())
        yield f"highest that did not fire, {tell(at)}"
        held = "tau" if highest <= gate["tau"] else "the window: kappa times the mean of the scores before it"
        yield f"  held by {held}; the {donor}'s likeliest token: {tell_top(at)}"


def _tell_top(run: RunReader, sample: Answered, column: str, decode: Decode, at: int) -> str:
    """The likeliest token of a model at a position; what finds it, if `score` has not read this run."""
    for _, _, found in run.read_scores([column], [sample]):
        return _mark(decode, int(found[column][at]), -1, "[]").plain.strip()
    return f"not known; `lm-eval-takeover score {run.folder}` reads it"


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


def mark_takeovers(decode: Decode, trace: Columns, donor: str | None) -> Text:
    """The text with each takeover and the host's token in brackets, of a kind that the text lacks; none without a donor."""
    text = Text()
    rows = list(zip(*(trace[name].tolist() for name in (*_IDS, "chosen_from")), strict=True))
    own = decode([token for token, _, _ in rows])
    brackets = "⟦⟧" if "[" in own or "]" in own else "[]"
    for taken, stretch in groupby(rows, key=lambda row: donor is not None and row[2] == donor):
        if not taken:
            text.append(for_terminal(decode([token for token, _, _ in stretch])))
            continue
        for token, host, _ in stretch:
            text.append_text(_mark(decode, token, host, brackets))
    return text


def _mark(decode: Decode, token: int, host: int, brackets: str) -> Text:
    written = decode([token])
    shown = _strip(written)
    marked = Text(written[: len(written) - len(shown)]).append(brackets[0]).append(_inline(shown), style=TAKEOVER)
    if host not in (-1, token):
        marked.append("|").append(_inline(_strip(decode([host]))), style=REPLACED)
    return marked.append(brackets[1] + "\n" * written.count("\n"))  # the line that it ends is broken behind its mark


def _strip(text: str) -> str:
    """Without the spaces in front, unless there is nothing else."""
    return text.lstrip(" ") or text


def _inline(text: str) -> str:
    return for_terminal(text).replace("\n", "\\n")

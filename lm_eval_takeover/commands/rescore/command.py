"""The options of `rescore`, the tables and lines that it prints."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from lm_eval_takeover.commands._options import add_shared, check_include_path
from lm_eval_takeover.commands._output import Table, write_terminal
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.escaping import for_terminal

if TYPE_CHECKING:
    from lm_eval_takeover.answers.samples import Verifier
    from lm_eval_takeover.commands.rescore.scoring import Rescored, Verdicts
    from lm_eval_takeover.runs.run_reader import StoredRun

HELP = "judge the stored answers of a run again"
DESCRIPTION = """\
Judge all answers in a run_dir again, with the installed tasks or those of --include_path. Nothing is generated. Results and
samples are written as lm_eval does, and every verdict that changed is listed."""
EXAMPLE = """examples:
  lm-eval-takeover rescore runs/math500
  lm-eval-takeover rescore runs/math500 --include_path my-tasks --output_path results/again
  lm-eval-takeover rescore runs/math500 --verifier math_verify,boxed,last_number,exact_match
"""
_VERIFIERS = (
    "who judges, one or more: takeover (the default); math_verify, that library alone; boxed, which reads boxes alone; "
    "last_number; exact_match, letter by letter"
)


def _read_verifiers(text: str) -> list[str]:
    from lm_eval_takeover.answers.samples import Verifier

    names = list(dict.fromkeys(text.split(",")))
    if wrong := [name for name in names if name not in get_args(Verifier)]:
        raise argparse.ArgumentTypeError(f"'{wrong[0]}' is no verifier; {nearest(wrong[0], get_args(Verifier))}")
    return names


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="the folder that a run had as run_dir=, or a row of compare")
    tasks = {"default": [], "help": "tasks or groups (default: all tasks of the run)"}
    folder = {"help": "a folder of task files that replace the installed ones"}
    add_shared(parser, "tasks", "include_path", tasks=tasks, include_path=folder)
    add("--verifier", type=_read_verifiers, metavar="NAME,…", default=["takeover"], help=_VERIFIERS)
    add("--think_end_token", metavar="TEXT", help="text that ends the thinking (default: think_end_token of the run)")
    out = "folder for the results (default: RUN_DIR/rescored, or RUN_DIR/VERIFIER); each of several has a folder in it"
    add("--output_path", type=Path, metavar="DIR", help=out)


def run(options: argparse.Namespace) -> int:
    check_include_path(options)
    from lm_eval_takeover.runs.layout import find_run_dir
    from lm_eval_takeover.runs.run_reader import read_stored_runs

    run_dir = find_run_dir(options.run_dir)
    runs, verdicts = read_stored_runs(run_dir)
    for verifier in options.verifier:
        name = "rescored" if verifier == "takeover" else verifier
        out = options.output_path if len(options.verifier) == 1 else None
        _rescore_all(options, runs, verdicts, verifier, out or (options.output_path or run_dir) / name)
    return 0


def _rescore_all(
    options: argparse.Namespace,
    runs: "Sequence[StoredRun]",
    verdicts: "Verdicts",
    verifier: "Verifier",
    out: Path,
) -> None:
    """Judge all commands of a run_dir by one verifier. Raises ArgumentError if none can be judged."""
    from lm_eval_takeover.commands.rescore.scoring import read_given_arguments, rescore

    rescored, refusals = [], []
    for stored in runs:
        if not stored.is_finished:
            finished = f"{len(stored.samples):,} of {len({row.key for row in stored.asked}):,} samples are finished"
            print(f"{finished}; documents that lack some of theirs are left out", flush=True)
        try:
            outcome = rescore(stored, verdicts, options.tasks, options.include_path, verifier, options.think_end_token)
            rescored.append((stored, outcome))
        except ArgumentError as error:  # a command that was stopped early, or was about other tasks
            refusals.append(error)
    if not rescored:
        raise refusals[-1]
    for number, (stored, outcome) in enumerate(rescored, 1):
        if len(runs) > 1:
            words = ",".join(f"{name}={value}" for name, value in read_given_arguments(stored).items())
            print(for_terminal(f"command {number}: {', '.join(stored.tasks)}; {words or 'no model arguments'}"))
        _print_outcome(outcome, out if len(rescored) == 1 else out / str(number))
    for refusal in refusals:
        print(for_terminal(f"not scored: {refusal}"))


def _print_outcome(outcome: "Rescored", out: Path) -> None:
    """Print the tables and the changed verdicts of one run, and write its results below `out`."""
    from lm_eval.utils import make_table

    from lm_eval_takeover.commands.rescore.scoring import write_results

    print(make_table(outcome.results))
    if outcome.results.get("groups"):
        print(make_table(outcome.results, "groups"))
    folder = write_results(outcome.results, out)
    if outcome.left_out:
        reason = "not all their responses are here, or the tasks have them no more"
        print(f"{outcome.left_out} documents left out: {reason}")
    verifier = outcome.results["config"]["takeover"]["verifier"]
    now = "now" if verifier == "takeover" else verifier
    if outcome.changes:
        titles = ["Task", "Doc", "Sample", "Verdict then", f"Verdict {now}", "Answer then", f"Answer {now}"]
        print(write_terminal(Table(titles, [list(map(str, change)) for change in outcome.changes])))
    words = "changed" if verifier == "takeover" else f"of the run differ from those of {verifier}"
    print(f"{len(outcome.changes)} of {outcome.compared:,} verdicts {words}; results and samples -> {folder}")

"""The door of `compare`: its options, and what it prints."""

import argparse
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from lm_eval_takeover.errors import ArgumentError

HELP = "set a guided run of the demo beside other ways to spend its budget"
DESCRIPTION = """\
Run the base alone, random takeovers at the guided run's rate and the guide alone, on the same problems with the same seed;
print lm-eval's table, recovery by method, and how well the gate meets the demo's true decisions."""
EXAMPLE = """example:
  lm_eval --model guided-takeover --model_args target_rate=0.05 --tasks takeover_demo --batch_size 400 \\
      --output_path results/demo
  lm-eval-takeover compare results/demo --early
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("results", type=Path, metavar="RESULTS", help="--output_path of the guided run")
    add("--early", action="store_true", help="also spend the budget on the first tokens of each answer")
    add("--batch_size", type=int, default=400, metavar="N", help="samples at a time (default: 400)")


def run(options: argparse.Namespace) -> int:
    if options.batch_size < 1:
        raise ArgumentError(f"--batch_size {options.batch_size} is not at least 1")
    from lm_eval.utils import make_table

    from lm_eval_takeover.commands.compare.decisions import count_decisions
    from lm_eval_takeover.commands.compare.methods import compare_methods, read_guided_run, summarize

    with _errors_only():
        guided = read_guided_run(options.results)
        rows = compare_methods(guided, options.batch_size, early=options.early)
        takeovers, decisions, both = count_decisions(guided["config"], options.batch_size)
    print(make_table(rows))
    print(summarize(rows))
    print(
        f"\nThe gate against the true decisions, one sample a problem: {takeovers} takeovers, {decisions} decisions, "
        f"precision {both / max(takeovers, 1):.1%}, recall {both / max(decisions, 1):.1%}"
    )
    return 0


@contextlib.contextmanager
def _errors_only() -> Iterator[None]:
    """The tables are the output: the runs' own notices stay out of it."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "lm_eval_takeover")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

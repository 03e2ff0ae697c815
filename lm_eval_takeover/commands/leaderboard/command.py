import argparse
import sys
from dataclasses import replace
from pathlib import Path

from lm_eval_takeover.commands._options import add_shared
from lm_eval_takeover.errors import ArgumentError, nearest

HELP = "print results like the paper's Table 3"
DESCRIPTION = """\
Read lm-eval results of any model and task whose metric is a number from 0 to 1 for each problem. Print Acc / Pass@8
for each task, their unweighted average, and Recovery. Intervals need `lm_eval --log_samples`."""
EXAMPLE = """examples:
  lm-eval-takeover leaderboard results/base results/guided results/random --thinking results/thinking
  lm-eval-takeover leaderboard results/mine --published --format md --columns maj8 cost
  lm-eval-takeover leaderboard results/base results/guided --vs results/base --format json
"""
EXTRAS = ("intervals", "maj8", "truncated", "task_rate", "reading", "same_as_guide", "cost")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("results", type=Path, nargs="*", default=[], metavar="RESULTS", help="the folder that lm_eval had as --output_path")
    same_size = "results of a reasoning model of the base's size"
    add("--thinking", type=Path, nargs="+", default=[], metavar="RESULTS", help=same_size)
    add("--published", action="store_true", help="also print the paper's rows, with the numbers of its tables")
    versus = "compare each row with this one (or a row's name in a folder of compare): difference, interval, p-value"
    add("--vs", type=Path, metavar="RESULTS", help=versus)
    add_shared(parser, "filter", "group", "max_missing", "format")
    columns = "also print these columns (JSON and CSV always have them all)"
    add("--columns", nargs="+", choices=EXTRAS, default=[], help=columns)


def run(options: argparse.Namespace) -> int:
    if not options.results and not options.thinking and not options.published:
        raise ArgumentError("leaderboard needs RESULTS, the folder of `lm_eval … --output_path`, or --published")
    from lm_eval_takeover.commands.leaderboard.formats import write_table
    from lm_eval_takeover.commands.leaderboard.published import read_published_rows
    from lm_eval_takeover.commands.leaderboard.rows import build_board
    from lm_eval_takeover.results.problems import ReadOptions

    reading = ReadOptions(options.filter, options.max_missing, options.group)
    named = {row.name: row for folder in options.results for row in folder.glob("*/") if (row / "results").is_dir()}
    versus = named.get(str(options.vs), options.vs)  # a row of a folder of `compare` first, whatever else has its name
    if versus is not None and not versus.exists():
        raise ArgumentError(f"--vs '{options.vs}' is neither a folder nor a row of compare; {nearest(str(options.vs), named)}")
    board = build_board(options.results, options.thinking, versus, reading)
    if options.published:
        board = replace(board, rows=[*board.rows, *read_published_rows()])
    sys.stdout.write(write_table(board, options.format, options.columns))
    return 0

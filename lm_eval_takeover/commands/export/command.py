"""The options of `export`, and what it prints."""

import argparse
import sys
from pathlib import Path

from lm_eval_takeover.commands._output import writing
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal

HELP = "write results for the Hub"
DESCRIPTION = """\
Write lm-eval results of the takeover tasks as the Hub's .eval_results/*.yaml. A pair has its own name there, and the guide is
stated."""
EXAMPLE = """examples:
  lm-eval-takeover export results/guided --to hub --out exported
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("results", type=Path, nargs="+", metavar="RESULTS", help="an --output_path of lm_eval")
    add("--to", choices=("hub",), default="hub", help="the format (default: hub)")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the files")
    add("--source_url", metavar="URL", help="a page that shows these results")


def run(options: argparse.Namespace) -> int:
    from lm_eval_takeover.commands.export import hub
    from lm_eval_takeover.results.runs import read_runs

    runs, notes = read_runs(options.results)
    with writing("out", options.out):
        files, more = hub.export(runs, options.out, options.source_url)
    for note in [*notes, *more]:
        print(for_terminal(note), file=sys.stderr)
    for file in files:
        print(for_terminal(str(file)))
    if not files:
        raise ArgumentError(f"nothing could be exported to {options.to}; the lines above say why")
    return 0

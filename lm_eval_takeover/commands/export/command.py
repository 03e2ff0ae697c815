"""The options of `export`, and what it prints."""

import argparse
import sys
from pathlib import Path

from lm_eval_takeover.commands._output import writing
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal

HELP = "write results for Every Eval Ever, the Hub or inspect_ai; takeovers as preference pairs"
DESCRIPTION = """\
Write lm-eval results of the takeover tasks for other tools: Every Eval Ever (one row for each sample), the Hub's
.eval_results/*.yaml, or logs for inspect_ai's viewer. A pair has its own name in all of them, and the guide is stated.
`--to pairs` takes a guided run's run_dir and the folder of its effects. It writes preference pairs (prompt, chosen, rejected)
as texts and as token ids, and a script that trains on them with TRL."""
EXAMPLE = """examples:
  lm-eval-takeover export results/guided --to eee --out exported
  lm-eval-takeover export results/guided --to hub --out exported
  lm-eval-takeover export results/guided --to inspect --out logs
  lm-eval-takeover export runs/guided --to pairs --effects effects --out pairs
  lm-eval-takeover export runs/guided --to pairs --tokens_only --out pairs
"""
FORMATS = ("eee", "hub", "inspect", "pairs")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("results", type=Path, nargs="+", metavar="RESULTS", help="an --output_path of lm_eval; for pairs a run_dir")
    add("--to", choices=FORMATS, required=True, help="the format")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the files")
    add("--organization", default="unknown", help="for eee: who ran the evaluation (default: unknown)")
    add("--source_url", metavar="URL", help="for hub: a page that shows these results")
    add("--effects", type=Path, metavar="DIR", help="for pairs: the folder that effects had as --out")
    add("--tokens_only", action="store_true", help="for pairs: single tokens, not whole continuations")
    add("--weights", metavar="SCORE", help="for pairs: add this score at each token, by the run's models, as weights")
    add("--min_effect", type=float, default=0.25, metavar="X", help="for pairs: least effect, 0 to 1 (default: 0.25)")
    add("--confidence", type=float, default=0.9, metavar="C", help="for pairs: of an effect's sign (default: 0.9)")


def run(options: argparse.Namespace) -> int:
    from lm_eval_takeover.commands.export import eee, hub, inspect_log, pairs
    from lm_eval_takeover.commands.export.source import read_sources

    if options.to == "pairs" and len(options.results) > 1:
        raise ArgumentError(f"--to pairs takes one run_dir, not {len(options.results)}")
    if not (0 <= options.min_effect <= 1 and 0 < options.confidence < 1):
        raise ArgumentError(f"--min_effect {options.min_effect} or --confidence {options.confidence} is outside 0..1")
    sources, notes = ([], []) if options.to == "pairs" else read_sources(options.results)
    with writing("out", options.out):
        if options.to == "pairs":
            choice = pairs.PairOptions(options.tokens_only, options.min_effect, options.confidence)
            files, more = pairs.export(options.results[0], options.out, options.effects, choice, options.weights)
        elif options.to == "eee":
            files, more = eee.export(sources, options.out, options.organization)
        elif options.to == "hub":
            files, more = hub.export(sources, options.out, options.source_url)
        else:
            files, more = inspect_log.export(sources, options.out)
    for note in [*notes, *more]:
        print(for_terminal(note), file=sys.stderr)
    for file in files:
        print(for_terminal(str(file)))
    if not files:
        raise ArgumentError(f"nothing could be exported to {options.to}; the lines above say why")
    return 0

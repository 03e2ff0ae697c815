"""The options of `list`."""

import argparse
import sys

from lm_eval_takeover.commands._options import add_shared

HELP = "list packaged calibrations, scores, policies and tasks"
KINDS = ("calibrations", "scores", "policies", "tasks")
DESCRIPTION = "Print the names that other commands and model arguments take, and where each comes from."
EXAMPLE = """examples:
  lm-eval-takeover list
  lm-eval-takeover list scores policies --plugins my_gate.py
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (default: all)")
    add_shared(parser, "plugins", "format", format={"choices": ("table", "json")})


def run(options: argparse.Namespace) -> int:
    from lm_eval_takeover.errors import ArgumentError, nearest

    for kind in options.kinds:
        if kind not in KINDS:
            raise ArgumentError(f"KIND '{kind}' is not known; {nearest(kind, KINDS)}")
    from lm_eval_takeover.commands._output import write_json
    from lm_eval_takeover.commands.list.names import list_names, write_names

    rows = list_names(options.kinds or KINDS, options.plugins)
    sys.stdout.write(write_json({"rows": rows}) if options.format == "json" else write_names(rows))
    return 0

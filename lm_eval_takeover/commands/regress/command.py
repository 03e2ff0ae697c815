import argparse
from pathlib import Path

from lm_eval_takeover.commands._options import COUNT, RATE, SHARE, add_shared, number
from lm_eval_takeover.errors import ArgumentError

HELP = "check a run for regressions against a baseline, in CI"
DESCRIPTION = """\
Compare a run with a baseline, problem by problem: each task, and the average over tasks. The verdict is `regressed` if the
interval of the difference lies below the allowed drop, `pass` if it lies above, else `inconclusive`. Exit status: 0 pass or
inconclusive, 1 regressed (with --strict also inconclusive), 2 a wrong call or settings that differ from the baseline's."""
EXAMPLE = """examples:
  lm-eval-takeover regress results/good --baseline baseline.json --update
  lm-eval-takeover regress results/now --baseline baseline.json --max_drop 0.02
  lm-eval-takeover regress --baseline baseline.json --plan --drop 0.02 0.05 0.10
"""


_METRICS = (
    "one or more of acc (or what the task calls it), pass@K, maj@N and any other metric that is better if higher (--max_drop), "
    "realized_rate, guide_passes_per_token, truncated, no_answer, restated, unparsed, timed_out, unboxed, unclosed_think "
    "(--max_change) (default: acc)"
)
_LOG = (
    "the baseline file (JSON); or a log to compare with: a folder of results, samples_*.jsonl; or a configuration "
    "of vLLM's lm-eval-harness (YAML)"
)


MOST = number(float, "a number of answers or a share below 1", lambda n: 0 <= n < 1 or (n >= 1 and n.is_integer()))
CONFIDENCE = number(float, "a share from 0.5 to below 1", lambda share: 0.5 <= share < 1)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("results", nargs="?", type=Path, metavar="RESULTS", help="the run's --output_path, with --log_samples")
    add("--baseline", type=Path, metavar="FILE", help=_LOG)
    add("--update", action="store_true", help="write the baseline from RESULTS")
    add("--metric", nargs="+", help=_METRICS)
    for name, word in (("drop", "drop"), ("change", "change, up or down")):
        add(f"--max_{name}", type=SHARE, default=0.02, metavar="X", help=f"allowed {word} (default: 0.02)")
    most = "answers that may change their verdict (a number, or a share); beyond it an exact sign test judges. For greedy runs"
    add("--max_changed", type=MOST, metavar="N", help=most)
    sure = "confidence of the two-sided interval (default: 0.95)"
    add("--confidence", type=CONFIDENCE, default=0.95, metavar="P", help=sure)
    add("--strict", action="store_true", help="exit with 1 also if the verdict is inconclusive")
    add("--tasks", nargs="+", default=[], metavar="TASK", help="check only these tasks (default: all of the baseline)")
    add("--allow", nargs="+", default=[], metavar="SETTING", help="settings that may differ from the baseline's")
    add("--plan", action="store_true", help="print the chance to notice a drop; needs only the baseline")
    drops = "for --plan: drops to try (default: 0.02 0.05 0.10)"
    add("--drop", type=RATE, nargs="+", default=[0.02, 0.05, 0.10], metavar="X", help=drops)
    add("--samples", type=COUNT, metavar="N", help="for --plan: samples of each problem (default: the baseline's)")
    add("--junit", type=Path, metavar="FILE", help="also write JUnit XML to this file")
    add_shared(parser, "filter", "group", "max_missing", "format", format={"choices": ("table", "md", "json")})


def run(options: argparse.Namespace) -> int:
    if not options.results and (options.update or not options.plan):
        raise ArgumentError("regress needs RESULTS, the folder of `lm_eval … --output_path`")
    if options.baseline is None and not (options.plan and options.results):
        raise ArgumentError("regress needs --baseline FILE; write one from a good run with --update")
    from lm_eval_takeover.commands.regress.checks import regress

    return regress(options)

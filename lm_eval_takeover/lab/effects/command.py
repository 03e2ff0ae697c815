import argparse
from pathlib import Path

from lm_eval_takeover.commands._options import add_shared, add_stored_pair, check_include_path, read_stored_pair
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.lab.extra import need_lab_packages

HELP = "measure what single takeovers change"
DESCRIPTION = """\
Take positions of a guided run where base and guide draw different tokens. Force each of the two tokens, continue both texts
with the same random numbers, and judge them. The effect of a position is the difference between the shares of correct texts.
Controls are positions that the base wrote; there a different draw of the guide is forced. An interrupted call continues when
you give it again."""
EXAMPLE = """examples:
  lm-eval-takeover effects runs/guided --takeovers 200 --continuations 8 --out effects
  lm-eval-takeover effects runs/guided --out effects --after gate
  lm-eval-takeover effects runs/guided --out effects --dry_run
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="the run_dir of a guided run, or what compare made of its row")
    add("--out", type=Path, required=True, metavar="DIR", help="a folder for tables, figures and the continued texts")
    add("--takeovers", type=int, default=200, metavar="N", help="takeovers to sample (default: 200)")
    add("--controls", type=int, metavar="N", help="controls to sample (default: half of --takeovers)")
    add("--continuations", type=int, default=8, metavar="K", help="texts after each token (default: 8)")
    after = "who continues the text: base, the default writer alone; gate, the run's own policy (default: base)"
    add("--after", choices=["base", "gate"], default="base", help=after)
    add_shared(parser, "seed", "include_path", seed={"help": "seed for the choice of positions (default: 0)"})
    add("--dry_run", action="store_true", help="print what it would cost; load no model")
    add_stored_pair(parser)


def run(options: argparse.Namespace) -> int:
    if options.controls is None:
        options.controls = options.takeovers // 2
    for name, least, most in (("takeovers", 1, 10**6), ("controls", 0, 10**6), ("continuations", 1, 1000)):
        if not least <= (value := getattr(options, name)) <= most:
            raise ArgumentError(f"--{name} {value} is not in {least} to {most}")
    check_include_path(options)
    need_lab_packages("effects")
    given = read_stored_pair(options)
    from lm_eval_takeover.runs.run_reader import read_run_folder

    run = read_run_folder(options.run_dir)
    run.check_finished()
    if run.written_by is not None:
        raise ArgumentError(f"run_dir='{run.folder}' was written by the {run.written_by} alone; effects need a guided run")
    from lm_eval_takeover.lab.effects.positions import Form, describe_cost, list_candidates
    from lm_eval_takeover.lab.measures.effects import CONTROL, TAKEOVER

    form = Form.of(run)
    if form.is_greedy and options.continuations > 1:
        print("decoding is greedy: one continuation after each token is enough")
        options.continuations = 1
    candidates = list_candidates(run, form.limit)
    if not len(candidates[TAKEOVER].rows):
        problem = f"has no takeover by another token than the {run.host}'s"
        raise ArgumentError(f"run_dir='{run.folder}' {problem}; effects need a guided run")
    wanted = {TAKEOVER: options.takeovers, CONTROL: options.controls}
    print(for_terminal(describe_cost(run, candidates, wanted, options)))
    if options.dry_run:
        return 0
    from lm_eval_takeover.lab.effects.measuring import measure

    return measure(options, given, form, candidates)

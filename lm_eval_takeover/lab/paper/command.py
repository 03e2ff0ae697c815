"""What is finished is used again by the commands that `paper` runs."""

import argparse
import shlex
import sys
from pathlib import Path

from lm_eval_takeover import stopping
from lm_eval_takeover.lab.extra import need_lab_packages

HELP = "make every table and figure of the papers"
DESCRIPTION = """\
Make the tables and figures of 'Reasoning Can Be Restored by Correcting a Few Decision Tokens' (T1 to T14, F1 to F9) and claims
of 'Sparse but Critical' (S2, S3, S4, S8). Runs compare, score, analyze, report and calibrate where their results are missing,
then writes DIR/index.html and DIR/index.md: each table beside the printed one, each figure, and what differs in set-up.

To continue an interrupted command, give it again. A set-up whose models or data cannot be loaded is named in the index; the
others are made. --pair demo makes all items of the bundled pair."""
EXAMPLE = """examples:
  lm-eval-takeover paper --pair demo --limit 3 --run_dir runs/paper -- --num_prompts 20 --num_held_out 10
  lm-eval-takeover paper --setups my.toml --pair mine --limit 20 --run_dir runs/mine
  lm-eval-takeover paper --pair qwen3-0.6b --items T3,T4,F2 --run_dir runs/paper --dry_run
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--run_dir", type=Path, required=True, metavar="DIR", help="folder for all results and the index")
    add("--pair", metavar="NAME", help="only this set-up of the manifest (default: all that its items name)")
    add("--setups", type=Path, metavar="FILE", help="TOML file with set-ups of your own as [pairs.NAME], for --pair")
    add("--items", default="", metavar="ITEM,…", help="only these, for example T3,T4,F2 (default: all)")
    add("--limit", type=float, metavar="N", help="problems of each task, as in compare")
    add("--dry_run", action="store_true", help="print the commands and the memory that they need; run nothing")
    add("rest", nargs="*", default=[], metavar="-- OPTION", help="options of `compare`")


def run(options: argparse.Namespace) -> int:
    """Returns 0, or the exit status of the first command that failed; the index has all that was made."""
    need_lab_packages("paper")
    from lm_eval_takeover.commands.compare import worker
    from lm_eval_takeover.lab.paper.manifest import plan_commands, read_manifest, write_index
    from lm_eval_takeover.storage.files import make_component

    manifest = read_manifest(options.setups)
    chosen = manifest.choose(options.pair, options.items)
    status, failed = 0, dict[str, list[str]]()
    stopping.on_stop_in(options.run_dir)
    folders = {name: options.run_dir / make_component(name) for name in chosen}
    for name, items in chosen.items():
        for words in plan_commands(options, manifest.pairs[name], items, folders[name]):
            command = shlex.join(["lm-eval-takeover", *words])
            print(command, file=sys.stdout if options.dry_run else sys.stderr, flush=True)
            try:
                if not options.dry_run:
                    worker.start_worker(["lm_eval_takeover.cli", *words])
                elif words[0] == "compare":  # the others have nothing to estimate
                    worker.start_worker(["lm_eval_takeover.cli", *words, "--dry_run"], stdout=1)
            except worker.CallFailed as failure:
                failed.setdefault(name, []).append(f"not complete: `{command}` ended with exit status {failure.returncode}")
                print(f"{name}: {failed[name][-1]}", file=sys.stderr)
                status = status or failure.returncode
                if words[0] == "compare":
                    break  # the others read what it makes
    if not options.dry_run:
        write_index(options.run_dir, manifest, folders, chosen, failed)
        print(f"{len({item for items in chosen.values() for item in items})} items -> {options.run_dir / 'index.html'}")
    return status

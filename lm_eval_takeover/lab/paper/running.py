"""Runs the commands of each set-up; what is finished is used again by the commands themselves.

RUN_DIR/PAIR                     the folder of compare, with leaderboard.json; and what frontier wrote of it
RUN_DIR/PAIR/reverse             that of rows with a budget by which the base takes over
RUN_DIR/PAIR/analysis/ROWS       what analyze wrote of these rows
RUN_DIR/PAIR/report.html         what report wrote
RUN_DIR/PAIR/thresholds          the calibration files of Table 13
RUN_DIR/index.html, index.md     the papers' items
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from lm_eval_takeover import stopping
from lm_eval_takeover.commands.compare.worker import CallFailed, start_worker
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.lab.paper.index import write_index
from lm_eval_takeover.lab.paper.manifest import RATES, REVERSE, Item, PaperPair, is_reverse, read_manifest
from lm_eval_takeover.storage.paths import make_component

CLI = "lm_eval_takeover.cli"


def make_paper(options: argparse.Namespace) -> int:
    """Returns the exit status: 0, or that of the first command that failed; the index has all that was made."""
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
                    start_worker([CLI, *words])
                elif words[0] == "compare":  # the others have nothing to estimate
                    start_worker([CLI, *words, "--dry_run"], stdout=1)
            except CallFailed as failure:
                failed.setdefault(name, []).append(f"not complete: `{command}` ended with exit status {failure.status}")
                print(f"{name}: {failed[name][-1]}", file=sys.stderr)
                status = status or failure.status
                if words[0] == "compare":
                    break  # the others read what it makes
    if not options.dry_run:
        write_index(options.run_dir, manifest, folders, chosen, failed)
        print(f"{len({item for items in chosen.values() for item in items})} items -> {options.run_dir / 'index.html'}")
    return status


def plan_commands(options: argparse.Namespace, pair: PaperPair, items: Mapping[str, Item], folder: Path) -> Iterator[list[str]]:
    """The commands of one set-up in order, as arguments of `lm-eval-takeover`."""
    limit = [] if options.limit is None else ["--limit", f"{options.limit:g}"]
    models = [word for role in ("base", "guide") if (model := getattr(pair, role)) for word in (f"--{role}", model)]
    chat = ["--apply_chat_template", "--enable_thinking", "True"] if pair.chat else []
    if rows := dict.fromkeys(row for item in items.values() for row in item.rows if row != "thinking" or pair.thinking):
        thinking = f"thinking={DEMO.get(pair.thinking or '', pair.thinking)}"
        compare = ["compare", *models, "--tasks", *pair.tasks.split(), *chat, *limit]
        named = [thinking if row == "thinking" else row for row in rows if not is_reverse(row)]
        yield [*compare, "--rows", ",".join(named), "--run_dir", str(folder), *options.rest]
        if back := [row for row in rows if is_reverse(row)]:
            way = ["--direction", REVERSE, "--run_dir", str(folder / REVERSE)]
            yield [*compare, "--rows", ",".join(back), *way, *options.rest]
        if any(RATES in item.figures for item in items.values()):
            yield ["frontier", str(folder), "--out", str(folder)]
    analyses: dict[str, dict[str, Item]] = {}
    for name, item in items.items():
        if item.analyses:
            analyses.setdefault(item.place, {})[name] = item
    read = [item for those in analyses.values() for item in those.values()]
    for role in dict.fromkeys(item.rollouts for item in read):
        yield ["score", str(folder / role)]
    for role in dict.fromkeys(item.rollouts for item in read if "guides" in item.analyses):
        for name, model in pair.others.items():
            guide, _, dtype = model.partition(":")
            own = [*("--base", str(pair.base or DEMO["base"])), *("--guide", str({**DEMO}.get(guide, guide)))]
            yield ["score", str(folder / role), "--name", name, *own, *(["--guide_dtype", dtype] if dtype else [])]
    for place, those in analyses.items():
        first, out = next(iter(those.values())), folder / "analysis" / place
        only = ",".join(dict.fromkeys(name for item in those.values() for name in item.analyses))
        whose = ["--rollouts", first.rollouts]
        yield ["analyze", *(str(folder / label) for label in first.labels), "--out", str(out), "--only", only, *whose]
        if any(item.report for item in those.values()):
            yield ["report", str(out), "--out", str(folder / "report.html")]
    for task in (pair.calibrate or pair.tasks.split()) if any(item.calibrate for item in items.values()) else ():
        out = folder / "thresholds" / f"{make_component(task)}.json"
        if not out.exists():
            prompts = ["--num_prompts", limit[1]] if limit and options.limit >= 1 else []
            yield ["calibrate", *models, "--task", task, "--diagnostic", *chat, *prompts, "--out", str(out)]

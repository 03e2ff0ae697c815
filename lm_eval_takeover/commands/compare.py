"""The demo's comparison: the guided run beside the base alone, the guide alone, and other ways to spend its budget.

    lm_eval --model guided-takeover --model_args spike_ratio=0.045 --tasks takeover_demo --batch_size 400 \\
        --output_path results/demo
    python -m lm_eval_takeover.commands.compare results/demo [--early]

Reads the guided run's results file, runs the others with the same seed in one process, and prints lm-eval's table.
"""

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table

from lm_eval_takeover.decoding.lockstep import generate
from lm_eval_takeover.demo import PROMPT, problems
from lm_eval_takeover.demo.puzzle import decision_positions
from lm_eval_takeover.errors import ArgumentError, TakeoverError
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.storage.package_data import data_folder

TASK = "takeover_demo"


def read_guided(folder: Path) -> dict[str, Any]:
    """The newest results file of a guided run below `folder`."""
    files = sorted(folder.rglob("results_*.json"), key=lambda path: path.stat().st_mtime)
    for path in reversed(files):
        results: dict[str, Any] = json.loads(path.read_text())
        takeover = results.get("config", {}).get("takeover", {})
        if takeover.get("policy") == "disagreement" and TASK in results["results"]:
            return results
    raise ArgumentError(
        f"'{folder}' holds no results of `lm_eval --model guided-takeover --tasks {TASK}`; run that first"
    )


def compare(guided: dict[str, Any], batch_size: int, *, early: bool = False) -> dict[str, Any]:
    """Results of all methods in lm-eval's own shape, one 'task' per method, with the realized rate as a metric."""
    rate, seed = (guided["config"]["takeover"][name] for name in ("realized_rate", "seed"))
    limit = guided["config"]["limit"]
    tasks = TaskManager(include_path=str(data_folder("task_configs")), include_defaults=False)
    runs = {
        "base alone": {"policy": "base"},
        "random": {"policy": "random", "rate": rate},
        **({"early only": {"policy": "early", "rate": rate}} if early else {}),
        "guided": None,
        "guide alone": {"policy": "guide"},
    }
    rows: dict[str, Any] = {"results": {}, "versions": {}, "n-shot": {}, "higher_is_better": {}, "configs": {}}
    for name, arguments in runs.items():
        results = guided
        if arguments is not None:
            print(f"{name}: {', '.join(f'{key}={value}' for key, value in arguments.items())}", file=sys.stderr)
            lm = GuidedTakeover(**arguments, seed=seed, batch_size=batch_size)
            results = simple_evaluate(model=lm, tasks=[TASK], task_manager=tasks, limit=limit, log_samples=False)
        metrics = dict(results["results"][TASK])
        metrics["realized_rate,all"] = results["config"]["takeover"]["realized_rate"]
        rows["results"][name] = metrics | {"alias": name}
        rows["versions"][name] = results["versions"][TASK]
        rows["n-shot"][name] = results["n-shot"][TASK]
        rows["higher_is_better"][name] = results["higher_is_better"][TASK]
    return rows


def summary(rows: dict[str, Any]) -> str:
    """Acc, Pass@8, realized rate and recovery by method, as Markdown."""
    base, guide = (rows["results"][name] for name in ("base alone", "guide alone"))

    def recovery(metrics: dict[str, float], name: str) -> str:
        gap = guide[name] - base[name]
        return f"{(metrics[name] - base[name]) / gap:.0%}" if gap else "-"

    lines = [
        "|Method|Realized rate|Acc|Pass@8|Recovery Acc|Recovery Pass@8|",
        "|------|------------:|--:|-----:|-----------:|--------------:|",
    ]
    for name, metrics in rows["results"].items():
        values = (
            name,
            f"{metrics['realized_rate,all']:.1%}",
            f"{metrics['acc,all']:.1%}",
            f"{metrics['pass@8,all']:.1%}",
            recovery(metrics, "acc,all"),
            recovery(metrics, "pass@8,all"),
        )
        lines.append(f"|{'|'.join(values)}|")
    return "\n".join(lines)


def decisions(lm: GuidedTakeover, limit: int | None, batch_size: int) -> tuple[int, int, int]:
    """(takeovers, true decisions, takeovers at true decisions) over one guided sample of each demo problem."""
    prompts = [tuple(lm.tok_encode(PROMPT.format(problem=row["problem"]))) for row in problems()[:limit]]
    requests = [Request(prompt, 0, 320, Sampling(0.6, 0.95)) for prompt in prompts]
    fired = true = both = 0
    for _, generation in generate(lm.pair, lm.policy, requests, seed=lm.arguments.seed, batch_size=batch_size):
        positions = decision_positions([lm.tokenizer.decode([token]) for token in generation.tokens])
        fired += generation.takeovers
        true += len(positions)
        both += sum(generation.taken_over[position] for position in positions)
    return fired, true, both


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lm_eval_takeover.commands.compare", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="--output_path of the guided run")
    parser.add_argument("--batch_size", type=int, default=400)
    parser.add_argument("--early", action="store_true", help="also spend the budget on the first tokens of each answer")
    options = parser.parse_args(arguments)
    with _errors_only():
        return _print(options)


@contextlib.contextmanager
def _errors_only() -> Iterator[None]:
    """The tables are the output: the runs' own notices stay out of it."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "lm_eval_takeover")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _print(options: argparse.Namespace) -> int:
    try:
        guided = read_guided(options.folder)
        limit = guided["config"]["limit"]
        if limit is not None and limit < 1:
            raise ArgumentError(f"--limit {limit} of the guided run is a share; give a number of problems")
        rows = compare(guided, options.batch_size, early=options.early)
        takeover = guided["config"]["takeover"]
        gate = {name: takeover[name] for name in ("score", "tau", "kappa", "window", "seed")}
        lm = GuidedTakeover(**gate, batch_size=options.batch_size)
        fired, true, both = decisions(lm, None if limit is None else int(limit), options.batch_size)
    except TakeoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(make_table(rows))
    print(summary(rows))
    print(
        f"\nThe gate against the true decisions, one sample a problem: {fired} takeovers, {true} decisions, "
        f"precision {both / max(fired, 1):.1%}, recall {both / max(true, 1):.1%}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

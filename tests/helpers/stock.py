"""The stock command in this process: what it reads and writes, and what it does without lm-eval's thousands of task files."""

import sys
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from lm_eval import simple_evaluate
from lm_eval._cli.harness import HarnessCLI
from lm_eval.loggers import EvaluationTracker

from lm_eval_takeover.commands.calibrate.rollouts import HeldOutRollouts, MeasuredRate
from lm_eval_takeover.commands.compare import running, worker
from lm_eval_takeover.tasks.sampled import find_tasks


def parse_stock(words):
    """These words as the stock command reads them."""
    with patch.object(sys, "argv", list(words)):
        return HarnessCLI().parse_args()


def write_logs(folder, evaluate, *given, **options):
    """The files that the stock command writes of an evaluation: of what `evaluate` returns for these arguments."""
    tracker = EvaluationTracker(output_path=str(folder))
    results = evaluate(*given, evaluation_tracker=tracker, **options)
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for task in samples:
        tracker.save_results_samples(task_name=task, samples=samples[task])


def evaluate_here(options):
    """What the stock command does with these options, without lm-eval's thousands of task files."""
    tasks = ",".join(options["tasks"]).split(",")
    names = ("model", "model_args", "batch_size", "device", "limit", "gen_kwargs")
    named = {name: options.get(name) for name in names}
    named |= {"tasks": tasks, "task_manager": find_tasks(tasks, options.get("include_path")), "bootstrap_iters": 0}
    write_logs(options["output_path"], simple_evaluate, **named)


@contextmanager
def comparing_here():
    """`compare` runs its rows in this process. Rates are solved without rollouts: each parameter gives the rate that it names."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(running, "run_apart", lambda call, **_: worker.run_batch([call], quiet=True))
        patched.setattr(worker, "read_harness_once", lambda: None)
        patched.setattr(worker, "run_lm_eval", evaluate_here)
        patched.setattr(HeldOutRollouts, "measure", lambda self, value, label: MeasuredRate(round(1e6 * value), 10**6, 0.0))
        yield

"""A/A comparisons of real runs on the demo pair: how often `regress` alarms between two seeds of one model.

    python benchmarks/real_regression_alarms.py             # 15 seeds of the base on 30 problems, some minutes on one core

15 runs make 105 pairs, which share runs, so they are no 105 independent comparisons. Either run of a pair may be the baseline;
it is the one of the lower seed. And two runs of one seed are compared, which the shared random numbers make the same text.
"""

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from lm_eval_takeover.commands.regress.baseline import read_single_run
from lm_eval_takeover.commands.regress.verdicts import compare
from lm_eval_takeover.results.files import Run
from lm_eval_takeover.storage.files import TASK_CONFIGS

TASK = "takeover_demo"


def run_seed(policy: str, seed: int, problems: int, folder: Path) -> Run:
    """One run by the stock harness, read as `regress` reads it."""
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    tracker = EvaluationTracker(output_path=str(folder))
    results: dict[str, Any] = simple_evaluate(
        model="guided-takeover",
        model_args={"policy": policy, "seed": seed, "batch_size": 240, "target_rate": 0.05},
        tasks=[TASK],
        task_manager=TaskManager(include_path=str(TASK_CONFIGS), include_defaults=False),
        limit=problems,
        evaluation_tracker=tracker,
        bootstrap_iters=0,
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    tracker.save_results_samples(task_name=TASK, samples=samples[TASK])
    return read_single_run(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--problems", type=int, default=30)
    parser.add_argument("--policy", default="base")
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        runs = [run_seed(options.policy, seed, options.problems, Path(folder) / str(seed)) for seed in range(options.seeds)]
        again = run_seed(options.policy, 0, options.problems, Path(folder) / "again")
    same = compare(runs[0], again, "acc", 0.0, 0.95)[TASK]
    found: dict[str, Any] = {"same seed": same.note or same.verdict, "seconds": round(time.perf_counter() - started)}
    pairs = list(itertools.combinations(runs, 2))
    for metric in ("acc", "pass@8"):
        tasks = [compare(old, new, metric, 0.0, 0.95)[TASK] for old, new in pairs]
        found[f"{metric}, limit 0"] = {
            "comparisons": len(pairs),
            "alarms": sum(task.verdict == "regressed" for task in tasks),
            "points beyond": sum(task.now < task.baseline for task in tasks),
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

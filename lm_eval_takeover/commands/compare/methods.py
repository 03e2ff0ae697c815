"""The methods that the demo compares: run by lm-eval with the guided run's seed, budget and problems, one table row each."""

import json
import sys
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.storage.package_data import data_folder

TASK = "takeover_demo"


def read_guided_run(folder: Path) -> dict[str, Any]:
    """The newest results file of a guided run of the demo task below `folder`. Raises ArgumentError where there is none."""
    for path in sorted(folder.rglob("results_*.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        results: dict[str, Any] = json.loads(path.read_text())
        takeover = results.get("config", {}).get("takeover", {})
        if takeover.get("policy") == "disagreement" and TASK in results["results"]:
            limit = results["config"]["limit"]
            if limit is not None and limit < 1:
                raise ArgumentError(f"--limit {limit} of the guided run is a share; give a number of problems")
            return results
    raise ArgumentError(
        f"'{folder}' holds no results of `lm_eval --model guided-takeover --tasks {TASK}`; run that first"
    )


def compare_methods(guided: dict[str, Any], batch_size: int, *, early: bool = False) -> dict[str, Any]:
    """Results of all methods in lm-eval's own shape, one 'task' per method, with the realized rate as a metric."""
    rate, seed = (guided["config"]["takeover"][name] for name in ("realized_rate", "seed"))
    tasks = TaskManager(include_path=str(data_folder("task_configs")), include_defaults=False)
    methods: dict[str, dict[str, Any] | None] = {
        "base alone": {"policy": "base"},
        "random": {"policy": "random", "rate": rate},
        **({"early only": {"policy": "early", "rate": rate}} if early else {}),
        "guided": None,
        "guide alone": {"policy": "guide"},
    }
    rows: dict[str, Any] = {"results": {}, "versions": {}, "n-shot": {}, "higher_is_better": {}, "configs": {}}
    for name, arguments in methods.items():
        results = guided
        if arguments is not None:
            print(f"{name}: {', '.join(f'{key}={value}' for key, value in arguments.items())}", file=sys.stderr)
            results = simple_evaluate(
                model="guided-takeover",
                model_args={**arguments, "seed": seed, "batch_size": batch_size},
                tasks=[TASK],
                task_manager=tasks,
                limit=guided["config"]["limit"],
                log_samples=False,
            )
        metrics = dict(results["results"][TASK])
        metrics["realized_rate,all"] = results["config"]["takeover"]["realized_rate"]
        rows["results"][name] = metrics | {"alias": name}
        for field in ("versions", "n-shot", "higher_is_better"):
            rows[field][name] = results[field][TASK]
    return rows


def summarize(rows: dict[str, Any]) -> str:
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

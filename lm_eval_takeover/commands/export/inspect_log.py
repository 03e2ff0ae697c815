"""Logs of inspect_ai, version 2 of its JSON format, which `inspect view` opens: one per task, samples as epochs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval_takeover.commands._output import write_json
from lm_eval_takeover.commands.export.source import LoggedProblem, ResultsFile, find_benchmark
from lm_eval_takeover.results.problems import list_scores
from lm_eval_takeover.results.runs import TaskResult
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.paths import join_inside, make_component
from lm_eval_takeover.storage.whole_files import write_text

_SCORER = "lm_eval_takeover"


def export(sources: Sequence[ResultsFile], out: Path) -> tuple[list[Path], list[str]]:
    """`OUT/DATE_TASK_ID.json` by task: the files, and a line for each task without samples."""
    files, notes = [], []
    for source in sources:
        for task, result in source.run.tasks.items():
            if result.problems is None:
                notes.append(f"{task} of '{source.path}' has no samples, so its log has none; run with --log_samples")
            identity = digest_of([source.path.name, source.model, task, source.document.get("date")])[:22]
            stamp = source.date.isoformat().replace(":", "-")
            path = join_inside(out, f"{stamp}_{make_component(task).replace('_', '-')}_{identity}.json")
            write_text(path, write_json(describe_log(source, task, identity)))
            files.append(path)
    return files, notes


def describe_log(source: ResultsFile, task: str, identity: str) -> dict[str, Any]:
    result, date = source.run.tasks[task], source.date.isoformat()
    count = result.count * (result.samples or 1)
    return {
        "version": 2,
        "status": "success",
        "eval": _describe_eval(source, task, result, identity, date),
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": count,
            "completed_samples": count,
            "scores": [{"name": _SCORER, "scorer": _SCORER, "params": {}, "metrics": _describe_metrics(result)}],
        },
        "stats": {"started_at": date, "completed_at": date, "model_usage": {}},
        "samples": [
            _describe_sample(source, problem, place) for problem in source.samples(task) for place in range(len(problem.texts))
        ],
    }


def _describe_eval(source: ResultsFile, task: str, result: TaskResult, identity: str, date: str) -> dict[str, Any]:
    benchmark = find_benchmark(task)
    settings = ("policy", "score", "tau", "kappa", "window", "realized_rate", "seed")
    names = (*settings, "tokens", "takeovers", "guide_passes")
    dataset: dict[str, Any] = {"name": benchmark.dataset if benchmark else task, "samples": result.count}
    return {
        **dict.fromkeys(("eval_id", "run_id", "task_id"), identity),
        "created": date,
        "task": task,
        "task_version": str(result.settings.get("task_version")),
        "task_args": {},
        "dataset": dataset,
        "model": source.model,
        "model_args": {},
        "model_generate_config": source.generation(task),
        "config": {"epochs": result.samples or 1},
        "packages": source.versions(),
        "metadata": {"written_by": source.describe()}
        | {name: source.run.takeover[name] for name in names if source.run.takeover.get(name) is not None},
    }


def _describe_metrics(result: TaskResult) -> dict[str, Any]:
    metrics = {}
    for name in list_scores(result.means):
        metrics[name] = {"name": name, "value": result.means[name], "params": {}}
        if (error := result.errors.get(name)) is not None:
            metrics[f"{name} stderr"] = {"name": f"{name} stderr", "value": error, "params": {}}
    return metrics


def _describe_sample(source: ResultsFile, problem: LoggedProblem, place: int) -> dict[str, Any]:
    text = problem.texts[place]
    message = {"role": "assistant", "content": text, "source": "generate"}
    output = {"model": source.model, "choices": [{"message": message, "stop_reason": "unknown"}], "completion": text}
    judged = {"answer": problem.answers[place], "explanation": problem.outcomes[place]}
    return {
        "id": problem.doc_id,
        "epoch": place + 1,
        "input": problem.prompt,
        "target": problem.target,
        "messages": [{"role": "user", "content": problem.prompt, "source": "input"}, message],
        "output": output,
        "scores": {_SCORER: {"value": "C" if problem.correct[place] else "I", **judged}},
        "metadata": {"doc_hash": problem.doc_hash},
        "store": {},
        "events": [],
        "model_usage": {},
        "attachments": {},
    }

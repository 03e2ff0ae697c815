"""Every Eval Ever, schema 0.3.0: https://github.com/evaleval/every_eval_ever.

OUT/data/COLLECTION/OWNER/MODEL/UUID.json              a record of the run: each metric of each task with its interval
OUT/data/COLLECTION/OWNER/MODEL/UUID_samples.jsonl     a row per sample, which belongs to `acc` of its task
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import UUID

from lm_eval_takeover.commands._output import write_json
from lm_eval_takeover.commands.export.source import LoggedProblem, ResultsFile, find_benchmark, is_withheld
from lm_eval_takeover.results.problems import list_scores
from lm_eval_takeover.results.runs import TaskResult
from lm_eval_takeover.results.statistics import CONFIDENCE, mean_interval
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.paths import join_inside
from lm_eval_takeover.storage.whole_files import write_text, write_whole

SCHEMA_VERSION = "0.3.0"
COLLECTION = "lm-eval-takeover"


def export(sources: Sequence[ResultsFile], out: Path, organization: str) -> tuple[list[Path], list[str]]:
    """The files, and a line for each task whose samples are left out. One results file gives the same names each time."""
    files, notes = [], []
    for source in sources:
        digest = digest_of([source.path.name, source.model, source.run.takeover, source.document.get("date")])
        name = str(UUID(digest, version=4))
        place = f"data/{COLLECTION}/{source.model}"
        record = describe_run(source, organization)
        withheld = f"of '{source.path}': no rows of samples; its authors ask not to publish its questions"
        notes += [f"{task} {withheld}" for task in source.run.tasks if is_withheld(task)]
        folder = join_inside(out, place)
        samples = folder / f"{name}_samples.jsonl"
        if next(list_instances(source, record["evaluation_id"]), None):
            write_whole(samples, partial(_write_lines, rows=list_instances(source, record["evaluation_id"])))
            with samples.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                stream.seek(0)
                rows = sum(1 for _ in stream)
            file = {"format": "jsonl", "file_path": f"{place}/{samples.name}", "hash_algorithm": "sha256"}
            record["detailed_evaluation_results"] = {**file, "checksum": digest, "total_rows": rows}
            files.append(samples)
        files.append(folder / f"{name}.json")
        write_text(files[-1], write_json(record))
    return files, notes


def _write_lines(stream: Any, rows: Iterator[dict[str, Any]]) -> None:
    stream.writelines(json.dumps(row, ensure_ascii=False).encode(errors="surrogatepass") + b"\n" for row in rows)


def describe_run(source: ResultsFile, organization: str) -> dict[str, Any]:
    """The record of a run, without its samples."""
    stamp = str(int(source.date.timestamp()))
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"{COLLECTION}/{source.model}/{stamp}",
        "evaluation_timestamp": source.date.isoformat(),
        "retrieved_timestamp": stamp,
        "source_metadata": {
            "source_name": "lm-evaluation-harness with lm-eval-takeover",
            "source_type": "evaluation_run",
            "source_organization_name": organization,
            "evaluator_relationship": "other",
        },
        "eval_library": {
            "name": "lm_eval",
            "version": source.versions().get("lm_eval", "unknown"),
            "additional_details": {"lm-eval-takeover": metadata.version("lm-eval-takeover")},
        },
        "model_info": _describe_model(source),
        "evaluation_results": [
            _describe_metric(source, task, metric)
            for task, result in source.run.tasks.items()
            for metric in list_scores(result.means)
        ],
    }


def _describe_model(source: ResultsFile) -> dict[str, Any]:
    takeover = source.run.takeover
    details = {"written_by": source.describe(), "deployment_type": "self_deployed", "model_availability": "unknown"}
    names = ("policy", "direction", "score", "tau", "kappa", "window", "spike_ratio", "realized_rate", "seed")
    details |= {name: str(takeover[name]) for name in names if takeover.get(name) is not None}
    for role in ("base", "guide"):
        if takeover.get(role):
            details[role] = f"{source.model_id(role)}@{takeover[role].get('revision')}"
    owner, _, name = source.model.partition("/")
    engine = {"name": "transformers", "version": source.versions().get("transformers", "unknown")}
    shown = {"inference_engine": engine} if takeover.get("backend", "hf") == "hf" else {}
    return {"name": name, "id": source.model, "developer": owner, **shown, "additional_details": details}


def _describe_metric(source: ResultsFile, task: str, metric: str) -> dict[str, Any]:
    result, (name, _, k) = source.run.tasks[task], metric.partition("@")
    said = {"pass": f"a sample of {k} is correct", "maj": "the majority is correct"}
    details = {"samples_per_problem": str(result.samples), "task_version": str(result.settings.get("task_version"))}
    return {
        "evaluation_result_id": f"{task}/{metric}",
        "evaluation_name": task,
        "source_data": _describe_data(task, result),
        "metric_config": {
            "evaluation_description": said.get(name, "mean accuracy over samples"),
            "metric_id": metric,
            "metric_name": metric,
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
        },
        "score_details": {"score": result.means[metric], "uncertainty": _describe_uncertainty(result, metric)},
        "generation_config": {"generation_args": source.generation(task), "additional_details": details},
    }


def _describe_uncertainty(result: TaskResult, metric: str) -> dict[str, Any]:
    """Over problems, as `leaderboard` prints it."""
    known: dict[str, Any] = {"num_samples": result.count}
    if (error := result.errors.get(metric)) is not None:
        known["standard_error"] = {"value": error, "method": "over problems, whose samples are nested in them"}
    if result.problems is not None:
        interval = mean_interval(result.problems.values[metric])
        known["confidence_interval"] = {
            "lower": interval.low,
            "upper": interval.high,
            "confidence_level": CONFIDENCE,
            "method": "Wilson score interval at the effective number of problems, Student's t",
        }
    return known


def _describe_data(task: str, result: TaskResult) -> dict[str, Any]:
    benchmark = find_benchmark(task)
    if benchmark is None:
        return {"dataset_name": task, "source_type": "other"}  # such as the demo
    place = {"hf_repo": benchmark.dataset, "hf_split": benchmark.split, "samples_number": result.count}
    return {"dataset_name": task, "source_type": "hf_dataset", **place}


def list_instances(source: ResultsFile, evaluation_id: str) -> Iterator[dict[str, Any]]:
    """A row per sample of every task whose problems may be published."""
    for task in source.run.tasks:
        if not is_withheld(task):
            for problem in source.samples(task):
                for place in range(len(problem.texts)):
                    yield _describe_instance(source, evaluation_id, task, problem, place)


def _describe_instance(source: ResultsFile, run_id: str, task: str, problem: LoggedProblem, place: int) -> dict[str, Any]:
    correct = problem.correct[place]
    identity = hashlib.sha256(f"{problem.prompt}{[problem.target]}".encode(errors="surrogatepass")).hexdigest()
    attribution = {"turn_idx": 0, "source": "output.raw", "extracted_value": problem.answers[place]}
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": run_id,
        "model_id": source.model,
        "evaluation_name": task,
        "evaluation_result_id": f"{task}/acc",
        "sample_id": f"{problem.doc_id}-{place}",
        "sample_hash": identity,
        "interaction_type": "single_turn",
        "input": {"raw": problem.prompt, "formatted": problem.prompt, "reference": [problem.target]},
        "output": {"raw": [problem.texts[place]]},
        "answer_attribution": [attribution | {"extraction_method": "lm-eval-takeover", "is_terminal": True}],
        "evaluation": {"score": float(correct), "is_correct": correct},
        "metadata": {"outcome": problem.outcomes[place], "doc_hash": problem.doc_hash, "sample": str(place)},
    }

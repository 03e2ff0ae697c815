"""`.eval_results/*.yaml` of the Hub: https://huggingface.co/docs/hub/eval-results.

A file is put into a model's repository, and its value is shown as that model's. So a pair's files lie below the pair's own name,
and `notes` names the guide: they are for a repository of the pair, not for the base's.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from lm_eval_takeover.commands.export.datasets import find_benchmark, is_draw
from lm_eval_takeover.commands.export.source import Source, is_whole
from lm_eval_takeover.storage.paths import join_inside
from lm_eval_takeover.storage.whole_files import write_text


def export(sources: Sequence[Source], out: Path, source_url: str | None) -> tuple[list[Path], list[str]]:
    """`OUT/OWNER/MODEL/.eval_results/TASK.yaml`: the files, and a line for each task that is left out."""
    files: dict[Path, None] = {}
    notes = []
    for source in sources:
        for task in source.run.tasks:
            if why := _find_obstacle(source, task):
                notes.append(f"{task} of '{source.path}' is left out: {why}")
                continue
            path = join_inside(out, source.model, ".eval_results", f"{task}.yaml")
            if path in files:
                notes.append(f"'{path}' is now that of '{source.path}', another run of {source.model}")
            write_text(path, write_entry(source, task, source_url))
            files[path] = None
        if source.is_pair:
            notes.append(
                f"{source.model}: for a repository of the pair; its base would be credited with another's score"
            )
    return list(files), list(dict.fromkeys(notes))


def _find_obstacle(source: Source, task: str) -> str | None:
    if find_benchmark(task) is None:
        return "it is no benchmark of the Hub"
    if is_draw(task) or not is_whole(source.run.tasks[task]):
        return "only a part of the benchmark was asked"
    return None


def write_entry(source: Source, task: str, source_url: str | None) -> str:
    """One entry. Texts are written as JSON has them, which YAML reads; the value is Acc in percent."""
    benchmark, result = find_benchmark(task), source.run.tasks[task]
    assert benchmark is not None
    lines = [
        "- dataset:",
        f"    id: {json.dumps(benchmark.dataset)}",
        f"    task_id: {json.dumps(benchmark.task_id)}",
        f"  value: {round(100 * result.means['acc'], 2)}",
        f"  date: {json.dumps(source.date.isoformat().replace('+00:00', 'Z'))}",
    ]
    if source_url:
        lines += ["  source:", f"    url: {json.dumps(source_url)}", "    name: lm-eval-takeover"]
    return "\n".join([*lines, f"  notes: {json.dumps(describe_setup(source, task), ensure_ascii=False)}"]) + "\n"


def describe_setup(source: Source, task: str) -> str:
    """Who wrote the texts, and how they were drawn and scored."""
    result = source.run.tasks[task]
    drawn = ", ".join(f"{name}={value}" for name, value in source.decoding(task).items() if value is not None)
    form = "chat template" if result.settings.get("chat_template") else "plain prompt"
    return f"{source.describe()}; mean over {result.samples} samples a problem, {drawn}, {form}; {task} of lm-eval-takeover"

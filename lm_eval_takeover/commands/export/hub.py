"""`.eval_results/*.yaml` of the Hub: https://huggingface.co/docs/hub/eval-results.

The Hub shows the value of such a file as the result of the repository that holds it. So a pair's files lie below the pair's own
name, and `notes` names the guide.
"""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
from huggingface_hub.utils import yaml_dump

from lm_eval_takeover.commands.export.source import ResultsFile, find_benchmark
from lm_eval_takeover.results.runs import PREFIX
from lm_eval_takeover.storage.paths import join_inside, make_component
from lm_eval_takeover.storage.whole_files import write_text


def export(sources: Sequence[ResultsFile], out: Path, source_url: str | None) -> tuple[list[Path], list[str]]:
    """`OUT/OWNER/MODEL/.eval_results/TASK.yaml`: the files, and a line for each task that is left out."""
    files: dict[Path, None] = {}
    notes = []
    for source in sources:
        for task in source.run.tasks:
            if why := _find_obstacle(source, task):
                notes.append(f"{task} of '{source.path}' is left out: {why}")
                continue
            path = join_inside(out, source.model, ".eval_results", f"{make_component(task)}.yaml")
            if path in files:
                notes.append(f"'{path}' is now that of '{source.path}', another run of {source.model}")
            entries = eval_result_entries_to_yaml([describe_entry(source, task, source_url)])
            write_text(path, yaml_dump(entries, sort_keys=False))
            files[path] = None
        if source.is_pair:
            notes.append(f"{source.model}: put it into a repository of the pair; it is no result of the base")
    return list(files), list(dict.fromkeys(notes))


def _find_obstacle(source: ResultsFile, task: str) -> str | None:
    if (benchmark := find_benchmark(task)) is None:
        return "it is no benchmark of the Hub"
    if task != f"{PREFIX}{benchmark.name}" or source.run.tasks[task].settings.get("limit") is not None:
        return "only a part of the benchmark was asked"
    return None


def describe_entry(source: ResultsFile, task: str, source_url: str | None) -> EvalResultEntry:
    """Acc in percent, with who wrote the texts and how they were drawn and scored."""
    benchmark, result = find_benchmark(task), source.run.tasks[task]
    assert benchmark is not None
    drawn = ", ".join(f"{name}={value}" for name, value in source.decoding(task).items() if value is not None)
    form = "chat template" if result.settings.get("chat_template") else "plain prompt"
    setup = f"mean over {result.samples} samples a problem, {drawn}, {form}; {task} of lm-eval-takeover"
    return EvalResultEntry(
        dataset_id=benchmark.dataset,
        task_id=benchmark.task_id,
        value=round(100 * result.means["acc"], 2),
        date=source.date.isoformat().replace("+00:00", "Z"),
        source_url=source_url,
        source_name="lm-eval-takeover" if source_url else None,
        notes=f"{source.describe()}; {setup}",
    )

"""Runs of lm-eval's in this process, of our tasks alone: its own take longer to index than all of this."""

import json
from pathlib import Path


def evaluate(model, tasks, arguments=None, limit=None, task_folder=None, metadata=None, **options):
    """lm-eval's results of tasks of ours, or of those whose files are in this folder."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from lm_eval_takeover.storage.files import TASK_CONFIGS

    manager = TaskManager(include_path=str(task_folder or TASK_CONFIGS), include_defaults=False, metadata=metadata)
    options = {"task_manager": manager, "bootstrap_iters": 0, "metadata": metadata} | options
    return simple_evaluate(model=model, model_args=arguments, tasks=tasks, limit=limit, **options)


def write_task(folder, name, rows, kind="SampledTask", **config):
    """A task of ours of these documents, which ask for `problem`, in NAME.yaml and NAME.jsonl of a folder that may be new."""
    folder.mkdir(exist_ok=True)
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": str(data)}, "test_split": "train"}
    lines = [f"{key}: {json.dumps(each)}" for key, each in (given | {"doc_to_text": "{{problem}}"} | config).items()]
    kind = f"class: !function lm_eval_takeover.tasks.sampled.{kind}"
    (folder / f"{name}.yaml").write_text("\n".join([kind, *lines]))


def run_demo(folder, limit, arguments, task="takeover_demo", task_folder=None, **options):
    """The demo task by our model with a run_dir, or without one where the folder is None."""
    from lm_eval_takeover.runs.run_writer import _open_here

    arguments = {"batch_size": 64, **({"run_dir": str(folder)} if folder else {}), **arguments}
    found = evaluate("guided-takeover", [task], arguments, limit, task_folder, **options)
    if folder:
        _open_here[Path(folder).resolve()].close()
    return found

"""`.eval_results/*.yaml` of the Hub: https://huggingface.co/docs/hub/eval-results.

The Hub shows the value of such a file as the result of the repository that holds it. So a pair's files lie below the pair's own
name, and `notes` names the guide.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
from huggingface_hub.utils import yaml_dump

from lm_eval_takeover.results.fields import Fields
from lm_eval_takeover.results.runs import PAIRS, Run
from lm_eval_takeover.storage.paths import join_inside, make_component
from lm_eval_takeover.storage.whole_files import write_text

_BENCHMARKS = {  # the data set of a task, and the `task_id` in its `eval.yaml`, which its owners may change
    "takeover_math500": ("HuggingFaceH4/MATH-500", "default"),
    "takeover_gsm8k": ("openai/gsm8k", "gsm8k"),
    "takeover_amc23": ("math-ai/amc23", "default"),
    "takeover_olympiadbench": ("Hothan/OlympiadBench", "OE_TO_maths_en_COMP"),
    "takeover_aime24": ("Maxwell-Jia/AIME_2024", "default"),
    "takeover_aime25": ("math-ai/aime25", "default"),
    "takeover_aime26": ("math-ai/aime26", "default"),
    "takeover_hmmt_feb26": ("MathArena/hmmt_feb_2026", "default"),
    "takeover_hmmt_nov25": ("MathArena/hmmt_nov_2025", "default"),
    "takeover_brumo25": ("MathArena/brumo_2025", "default"),
    "takeover_apex25": ("MathArena/apex_2025", "default"),
    "takeover_gpqa_diamond": ("Idavidrein/gpqa", "gpqa_diamond"),
}


def export(runs: Sequence[Run], out: Path, source_url: str | None) -> tuple[list[Path], list[str]]:
    """`OUT/OWNER/MODEL/.eval_results/TASK.yaml`: the files, and a line for each task that is left out. Raises ResultsError."""
    files: dict[Path, None] = {}
    notes = []
    for run in runs:
        model = name_model(run)
        for task in run.tasks:
            if why := _find_obstacle(run, task):
                notes.append(f"{task} of '{run.source}' is left out: {why}")
                continue
            path = join_inside(out, model, ".eval_results", f"{make_component(task)}.yaml")
            if path in files:
                notes.append(f"'{path}' is now that of '{run.source}', another run of {model}")
            entries = eval_result_entries_to_yaml([describe_entry(run, task, source_url)])
            write_text(path, yaml_dump(entries, sort_keys=False))
            files[path] = None
        if run.kind in PAIRS:
            notes.append(f"{model}: put it into a repository of the pair; it is no result of the base")
    return list(files), list(dict.fromkeys(notes))


def _find_obstacle(run: Run, task: str) -> str | None:
    if not f"{task}_".startswith(tuple(f"{whole}_" for whole in _BENCHMARKS)):
        return "it is no benchmark of the Hub"
    if task not in _BENCHMARKS or run.tasks[task].settings.get("limit") is not None:
        return "only a part of the benchmark was asked"
    return None


def name_model(run: Run) -> str:
    """`owner/name`, each fit for a path. A pair's is `takeover/BASE+GUIDE-policy`; a local folder's owner is `local`."""
    if run.kind in PAIRS:
        base, guide = (_find_id(run, role).rstrip("/").rpartition("/")[2] for role in ("base", "guide"))
        return "takeover/" + make_component(f"{base}+{guide}-{run.takeover['policy']}")
    alone = run.kind in ("base", "guide")
    name = _find_id(run, run.kind) if alone else str(run.settings.get("model_args.pretrained") or run.model)
    owner, _, last = name.rstrip("/").rpartition("/")
    is_local = name.startswith(("/", ".", "~")) or name.count("/") != 1 or Path(name).exists()
    return f"{'local' if is_local else make_component(owner)}/{make_component(last)}"


def _find_id(run: Run, role: str) -> str:
    """The id of a model. Raises ResultsError where the results have none."""
    identity: str = Fields(f"'{run.source}'", run.takeover, "config.takeover").inside(role).require("id", str)
    return identity


def describe_entry(run: Run, task: str, source_url: str | None) -> EvalResultEntry:
    """Acc in percent, with who wrote the texts and how they were drawn and scored."""
    dataset, task_id = _BENCHMARKS[task]
    result, dated = run.tasks[task], re.search(r"\d{4}-\d\d-\d\d", run.source.name)
    decoding = {name: result.settings.get(name) for name in ("temperature", "top_p", "top_k", "max_gen_toks")}
    drawn = ", ".join(f"{name}={value}" for name, value in decoding.items() if value is not None)
    form = "chat template" if result.settings.get("chat_template") else "plain prompt"
    setup = f"mean over {result.samples} samples a problem, {drawn}, {form}; {task} of lm-eval-takeover"
    return EvalResultEntry(
        dataset_id=dataset,
        task_id=task_id,
        value=round(100 * result.means["acc"], 2),
        date=dated[0] if dated else None,
        source_url=source_url,
        source_name="lm-eval-takeover" if source_url else None,
        notes=f"{_describe_writers(run)}; {setup}",
    )


def _describe_writers(run: Run) -> str:
    if run.kind not in PAIRS:
        return f"{name_model(run)} alone"
    host, donor = ("guide", "base") if run.takeover.get("direction") == "reverse" else ("base", "guide")
    rate = run.counts.realized_rate
    share = "a share that is not known" if rate is None else f"{rate:.1%}"
    places = {"random": "at random places", "early": "at the start of each answer"}
    rule = places.get(run.kind, f"where {run.takeover.get('score')} spikes")
    return (
        f"A pair, not {_find_id(run, host)} alone: {donor} {_find_id(run, donor)} wrote {share} of the tokens, {rule} "
        f"(guided-takeover)"
    )

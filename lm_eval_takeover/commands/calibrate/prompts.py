"""The prompts of a calibration: drawn from a file or a hub data set, asked as a task asks, never from a test set."""

import hashlib
import json
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval_takeover.commands._options import list_fields
from lm_eval_takeover.errors import ArgumentError, first_line
from lm_eval_takeover.method.request import TASK_MAX_GEN_TOKS, Sampling
from lm_eval_takeover.results.documents import read_lines
from lm_eval_takeover.tasks.instances import read_generation_settings
from lm_eval_takeover.tasks.known_problems import KnownProblems, digest_template, problem_digest, strip_template
from lm_eval_takeover.tasks.sampled import SampledTask, drop_headers, load_named_tasks

logger = logging.getLogger(__name__)

# As in task_configs/_math_template_yaml: a calibration sees the prompts of the benchmarks.
MATH_TEMPLATE = "Problem: {{%s}}\nPlease reason step by step, and put your final answer within \\boxed{}.\nSolution:"


@dataclass(frozen=True, slots=True)
class TaskForm:
    """A generation task as `calibrate` sees it; `render` makes the prompt of a document, before any chat template."""

    name: str
    render: Callable[[dict[str, Any]], str]
    template: str | None  # None where the task makes its prompts in Python
    sampling: Sampling
    until: tuple[str, ...]
    max_gen_toks: int
    documents: Sequence[dict[str, Any]]


def load_task_form(name: str, include: Path | None, *, chat: bool = False) -> TaskForm:
    """The form of a task or group, with `chat` under a chat template. Raises ArgumentError where there is no single form."""
    tasks = list(load_named_tasks([name], include, "--task").values())
    task = tasks[0]
    forms = {json.dumps([str(t.config.doc_to_text), t.config.generation_kwargs], default=str) for t in tasks}
    if len(forms) > 1:
        raise ArgumentError(
            f"--task {name} holds tasks of {len(forms)} forms ({', '.join(str(t.config.task) for t in tasks)}); name one of them"
        )
    if task.OUTPUT_TYPE != "generate_until":
        raise ArgumentError(f"--task {name} is {task.OUTPUT_TYPE}; only generate_until can be calibrated on")
    for field in ("num_fewshot", "description", "gen_prefix"):
        if value := getattr(task.config, field, None):
            raise ArgumentError(
                f"--task {name} sets {field}={value!r}, which its template does not hold; write prompts as they are asked into a "
                f"JSONL file"
            )
    sampling, until, max_gen_toks = read_generation_settings(task.config.generation_kwargs or {}, TASK_MAX_GEN_TOKS)
    documents = list(task.eval_docs)
    if chat and documents and isinstance(task, SampledTask):
        until = tuple(drop_headers(until, task.doc_to_text(documents[0])))
    template = task.config.doc_to_text if isinstance(task.config.doc_to_text, str) else None
    return TaskForm(name, task.doc_to_text, template, sampling, until, max_gen_toks, documents)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts to roll out (`texts`) and to solve rates on (`held_out`); `benchmarks`: test sets among them (--diagnostic)."""

    texts: tuple[str, ...]
    held_out: tuple[str, ...]
    source: dict[str, Any]
    benchmarks: tuple[str, ...] = ()


def read_prompts(
    source: str | None,
    *,
    split: str = "train",
    field: str | None = None,
    task: TaskForm | None = None,
    count: int = 500,
    held_out: int = 0,
    seed: int = 0,
    chat: Callable[[str], str] | None = None,
    enable_thinking: bool | None = None,
    diagnostic: bool = False,
) -> Prompts:
    """`count` prompts, and `held_out` others, drawn with `seed` from a JSONL file or from the Hub data set `id[:config]`.

    A row becomes a prompt by `task`, with the text of `field` as its problem. Without a task it is the text of `field` in a file,
    and the prompt of our mathematical tasks for a data set. `chat` then applies a chat template.
    Of too few rows, at most two fifths are held out. Without a `source` the rows are the documents of `task`, test problems: only
    `diagnostic` allows these. Raises ArgumentError for what cannot be read or is a test problem.
    """
    rows, option, told = _open_rows(source, split, field, task)
    drawn = _draw_rows(rows, option, told, task, chat or str, count + held_out, seed)
    held_out = min(held_out, max(len(drawn) - count, 2 * (len(drawn) // 5)))
    kept = min(count, len(drawn) - held_out)
    drawn = [*sorted(drawn[:kept]), *sorted(drawn[kept : kept + held_out])]
    indices, raw, texts = zip(*drawn, strict=True)
    checked, test_sets = _check_problems(option, drawn, task if source else None, diagnostic)
    benchmarks = dict.fromkeys([*test_sets, *([task.name] if task and source is None else [])])
    described = {
        **told,
        "task": task.name if task else None,
        "chat_template": chat is not None,
        "enable_thinking": enable_thinking if chat else None,
        "seed": seed,
        "asked": count,
        "indices": list(indices[:kept]),
        "digest": f"sha256:{hashlib.sha256(json.dumps(texts[:kept]).encode()).hexdigest()}",
        "held_out_indices": list(indices[kept:]),
        "template_digest": digest_template(texts),
        "problems": [problem_digest(text) for text in strip_template(raw)],
        "checked_against": checked,
    }
    return Prompts(texts[:kept], texts[kept:], described, tuple(benchmarks))


def _open_rows(source: str | None, split: str, field: str | None, task: TaskForm | None) -> tuple[Any, str, dict[str, Any]]:
    """Rows to draw from, what errors call them, and what a calibration file says of them. Raises ArgumentError for none."""
    rows: Any
    option = f"--prompts '{source}'"
    told: dict[str, Any] = {"dataset": source, "split": None, "field": field, "template": task and task.template}
    if source is None:
        assert task is not None
        rows, option = task.documents, f"--task {task.name}"
        told |= {"dataset": task.name, "field": field or "problem"}
    elif (path := Path(source)).exists():
        # A task's template goes around a problem; without a task a file holds whole prompts.
        names = list_fields(field, task is not None)
        rows = [{name: line.get(name) for name in line} for line in read_lines(path, "one JSON object per line")]
        told |= {"dataset": path.name, "field": next((name for name in names if rows and name in rows[0]), names[0])}
    else:
        import datasets

        name, _, config = source.partition(":")
        try:
            rows = datasets.load_dataset(name, config or None, split=split)
        except Exception as error:  # the hub, the network and the loader each raise their own kinds
            raise ArgumentError(
                f"{option} is not a file, and cannot be loaded as a hub data set 'id[:config]': {first_line(error)}"
            ) from error
        usual = [name for name in (*(["problem"] if task else []), "prompt") if name in rows.column_names]
        told |= {"split": split, "field": field or (usual or ["question"])[0]}
        told["template"] = told["template"] if task else MATH_TEMPLATE % told["field"]
    if not len(rows):
        raise ArgumentError(f"{option} holds no prompt; expected one JSON object with '{told['field']}' per line")
    return rows, option, told


def _draw_rows(
    rows: Any, option: str, told: Mapping[str, Any], task: TaskForm | None, chat: Callable[[str], str], count: int, seed: int
) -> list[tuple[int, str, str]]:
    """`(number, text, prompt)` of up to `count` rows, in the order of the draw; no two have one prompt."""
    field, shuffled = told["field"], list(range(len(rows)))
    random.Random(seed).shuffle(shuffled)
    drawn: list[tuple[int, str, str]] = []
    prompts: set[str] = set()
    repeated = 0
    for index in shuffled:
        if len(drawn) == count:
            break
        row = rows[index]
        text = row.get(field)
        if not isinstance(text, str) or not text.strip():
            which = f"row {index + 1} has no" if any(each.get(field) for each in rows) else "no row has"
            fields = f"'{field}' (its fields: {', '.join(map(str, row))})"
            raise ArgumentError(f"{option}: {which} text in field {fields}; name the field with --field")
        if task is not None:
            prompt = _render_task(task, row | {"problem": text})
        else:
            prompt = text if told["template"] is None else told["template"].replace(f"{{{{{field}}}}}", text)
        if prompt in prompts:  # which would have the same rollout
            repeated += 1
            continue
        prompts.add(prompt)
        drawn.append((index, text, chat(prompt)))
    if repeated:
        logger.warning("%d rows of %s repeat the prompt of another; left out", repeated, option)
    return drawn


def _render_task(task: TaskForm, row: dict[str, Any]) -> str:
    try:
        return str(task.render(row))
    except Exception as error:  # a task's own code, or a field that its template asks for
        raise ArgumentError(
            f"--task {task.name}: {first_line(error)}; its template is {task.template!r}, and the fields of a row are "
            f"{', '.join(map(str, row))}"
        ) from error


def _check_problems(
    option: str, drawn: Sequence[tuple[int, str, str]], task: TaskForm | None, diagnostic: bool
) -> tuple[list[str], list[str]]:
    """Which benchmarks these rows are checked against, and which they are of; ArgumentError unless `diagnostic`."""
    own = {task.name: [problem_digest(_render_task(task, row)) for row in task.documents]} if task else {}
    problems = KnownProblems.load(**own)
    test_rows: dict[str, list[int]] = defaultdict(list)
    for index, text, prompt in drawn:
        if benchmark := problems.held_by(text, prompt):
            test_rows[benchmark].append(index + 1)
    if test_rows and not diagnostic:
        listed = "; ".join(
            f"{name}: row{'s' * (len(at) > 1)} {', '.join(map(str, at[:5]))}{' …' * (len(at) > 5)}"
            for name, at in test_rows.items()
        )
        raise ArgumentError(
            f"{option}: {sum(map(len, test_rows.values()))} of {len(drawn)} prompts are problems of a test set ({listed}); "
            f"calibrate on others, such as a train split, or with --diagnostic, which no run on that test set accepts"
        )
    return problems.benchmarks, list(test_rows)

"""Tasks by name, and the classes of task files: several samples of a problem, what the file leaves out, checks at the start.

GPQA-Diamond has its own, for what a YAML file cannot say: access on the hub, and questions that stay out of logs.
"""

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from lm_eval_takeover.answers.samples import Verifier
from lm_eval_takeover.errors import ArgumentError, TakeoverError, first_line, nearest
from lm_eval_takeover.method.request import TASK_MAX_GEN_TOKS
from lm_eval_takeover.storage.files import TASK_CONFIGS
from lm_eval_takeover.tasks.benchmarks import Document, Record, process_results, score_all, score_letters
from lm_eval_takeover.tasks.context import WithheldPrompt, find_context
from lm_eval_takeover.tasks.instances import LENGTHS, is_greedy, keep_last_length
from lm_eval_takeover.tasks.verdicts import identify_scorer, list_metrics

_log = logging.getLogger(__name__)

DEFAULTS: Mapping[str, Any] = {
    "output_type": "generate_until",
    "test_split": "test",
    "doc_to_target": "{{answer}}",
    "repeats": 8,
    "num_fewshot": 0,
    "filter_list": [{"name": "all", "filter": [{"function": "custom", "filter_fn": score_all}]}],
    "process_results": process_results,
}
# The paper's decoding (appendix A.1).
SAMPLING: Mapping[str, Any] = {"do_sample": True, "temperature": 0.6, "top_p": 0.95}

_TELLING = 400  # characters of all problems together: sampled texts of this length hardly repeat by chance


def drop_headers(until: Sequence[str], prompt: str) -> list[str]:
    """The stop strings but those that this prompt of the task begins with."""
    return [stop for stop in until if not (stop.strip() and prompt.startswith(stop.strip()))]


class SampledTask(ConfigurableTask):  # type: ignore[misc]
    """`repeats` samples of every problem, scored together: avg@n, pass@k for every k that fits, maj@n.

    A document has `problem` (a text), `answer` (a text or a number) and, where answers are approximate, `tolerance` (a number).
    What a task file leaves out is as in `DEFAULTS` and `complete_decoding`; `metric_list`, where it is given, chooses among the
    metrics. Raises ArgumentError, before anything is generated, for documents, samples or metrics that could not be scored.
    """

    def __init__(self, config: dict[str, Any]):
        config = {**DEFAULTS, **{key: value for key, value in config.items() if key != "class"}}
        config["generation_kwargs"] = complete_decoding(config.get("generation_kwargs") or {})
        used = {part.get("filter_fn") for entry in config["filter_list"] for part in entry["filter"]}
        if not used <= {score_all, score_letters}:
            raise ArgumentError(
                f"task {config.get('task')}: filter_list is not taken: the task reads answers itself; leave it out"
            )
        config["metric_list"] = _choose_metrics(config)
        self._ranks = 1
        super().__init__(config=config)
        self._name_scorer("takeover")

    def _name_scorer(self, verifier: Verifier) -> None:
        """Say in the task's metadata, which results have, who judges."""
        scorer = {"verifier": verifier, "scorer": identify_scorer(verifier)}
        self.config.metadata = {**(self.config.metadata or {}), **scorer}

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **settings: Any) -> None:
        """Loads the data set and checks its documents, which lm-eval itself reads from here on."""
        make = getattr(self.config, "custom_dataset", None)
        if callable(make):  # as lm-eval does it, without its warning about arguments at each start
            self.dataset = make(**(self.config.metadata or {}), **(self.config.dataset_kwargs or {}))
        else:
            super().download(dataset_kwargs, **settings)
        if (split := self.config.test_split) not in self.dataset:
            raise ArgumentError(f"task {self.config.task}: test_split='{split}' is none of {', '.join(self.dataset)}")
        for number, document in enumerate(self.test_docs()):
            if fault := _find_fault(document):
                file = (self.config.dataset_kwargs or {}).get("data_files")
                line = f" (line {number + 1} of '{file}')" if str(file).endswith(".jsonl") else ""
                raise ArgumentError(f"task {self.config.task}, doc {number}{line}: {fault}")

    def build_all_requests(self, *, world_size: int = 1, **settings: Any) -> Any:
        """As lm-eval does; a notice where decoding is greedy."""
        self._ranks = world_size
        self.config.generation_kwargs = keep_last_length(self.config.generation_kwargs)
        if self.config.repeats > 1 and is_greedy(self.config.generation_kwargs):
            _log.warning(
                "%s: decoding is greedy, so one text of each problem is written and counts as all its %d samples; pass@k and "
                "maj@%d equal acc",
                self.config.task, self.config.repeats, self.config.repeats,
            )  # fmt: skip
        return super().build_all_requests(world_size=world_size, **settings)

    def construct_requests(self, doc: Document, ctx: str, **settings: Any) -> Instance:
        """One request, answered once where decoding is greedy, else `repeats` times. In a chat the header is no stop string."""
        instance: Instance = super().construct_requests(doc, ctx, **settings)
        _, decoding = instance.arguments  # a copy of this request's own
        if is_greedy(decoding):
            instance.repeats = 1
        if settings.get("apply_chat_template"):
            until = decoding.get("until") or []
            decoding["until"] = drop_headers([until] if isinstance(until, str) else until, self.doc_to_text(doc))
        return instance

    def apply_filters(self) -> None:
        """Scores all samples. Raises TakeoverError for a document that has not exactly its samples, and names it."""
        _warn_if_identical(self.instances)
        self._name_scorer(find_context(text for instance in self.instances for text in instance.resps).verifier)
        for instance in self.instances:
            # Under several ranks lm-eval repeats the last request to give each rank as many; that is dropped here.
            samples = instance.resps[: instance.repeats] if self._ranks > 1 else instance.resps
            if len(samples) != instance.repeats:
                raise TakeoverError(
                    f"task {self.config.task}, doc {instance.doc_id} has {len(samples)} samples, expected "
                    f"{instance.repeats}; pass@k of another number would not be comparable, so no score is given"
                )
            instance.resps = samples * (self.config.repeats // instance.repeats)
        super().apply_filters()

    def process_results(self, doc: Document, results: Sequence[Record]) -> dict[str, Any]:
        """The metrics of one document, which the filter has computed: those that the task reports."""
        metrics: dict[str, Any] = super().process_results(doc, results)
        return {name: value for name, value in metrics.items() if name in self.aggregation()}


WITHHELD = "withheld: the authors of GPQA ask that its questions not be published"


class GPQA(SampledTask):
    """A multiple-choice task over a gated data set, with two switches in its metadata (or lm-eval's `--metadata`).

    `optional`: without the data set there is a notice and no score, but no error. `withhold_questions`: logged samples have no
    questions, prompts and responses; letters, outcomes, record ids and the canary string stay.
    """

    def __init__(self, config: dict[str, Any]):
        metadata = config.get("metadata") or {}
        self.optional = bool(metadata.get("optional"))
        self.withholds = bool(metadata.get("withhold_questions"))
        self.missing = False
        self._scored = False
        super().__init__(config=config)

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        """Raises TakeoverError with the way to get access, unless the task is optional."""
        try:
            super().download(dataset_kwargs)
        except datasets.exceptions.DatasetNotFoundError as error:
            line = (
                f"{self.config.task} needs the gated data set {self.config.dataset_path}: accept its terms on its page on the "
                f"hub, then `hf auth login` or set HF_TOKEN"
            )
            if not self.optional:
                raise TakeoverError(line) from error
            _log.warning("%s. The other tasks run, and their group's averages leave it out", line)
            self.missing = True
            columns = ["Question", "Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3))]
            row = dict.fromkeys([*columns, "Record ID", "Canary String"], "missing")
            self.dataset = datasets.DatasetDict({self.config.test_split: datasets.Dataset.from_list([row])})

    def build_all_requests(self, **settings: Any) -> None:
        """As lm-eval does; without the data set one request of no repeats, since lm-eval wants at least one."""
        if not self.missing:
            super().build_all_requests(**settings)
            for instance in self.instances if self.withholds else ():
                instance.arguments = (WithheldPrompt(instance.arguments[0]), *instance.arguments[1:])
            return
        task = (self.config.task, 0, 0)
        self._instances = [Instance(self.OUTPUT_TYPE, self.eval_docs[0], (WITHHELD, {}), 0, metadata=task)]

    def apply_filters(self) -> None:
        """Scores all samples, then takes questions, prompts and responses out of what lm-eval logs, if asked to."""
        if self.missing:
            self._instances[0].filtered_resps = {"all": None}
            return
        super().apply_filters()
        self._scored = True
        if self.withholds:
            for instance in self._instances:
                instance.doc = _withhold(instance.doc)
                instance.arguments = (WITHHELD, *instance.arguments[1:])
                instance.resps = [WITHHELD] * len(instance.resps)

    def doc_iterator(self, **settings: Any) -> Iterator[tuple[int, Any]]:
        """No documents without the data set; documents without their questions once they are scored, if asked to."""
        if self.missing:
            return
        for index, doc in super().doc_iterator(**settings):
            yield index, _withhold(doc) if self._scored and self.withholds else doc


def _withhold(doc: dict[str, Any]) -> dict[str, Any]:
    return {**doc, "problem": WITHHELD, "choices": [WITHHELD] * len(doc["choices"])}


def complete_decoding(given: Mapping[str, Any]) -> dict[str, Any]:
    """A task file's `generation_kwargs`, with the paper's sampling and length as defaults."""
    decoding = {"until": [], **given}
    if not given.keys() & {*SAMPLING, "top_k", "min_p"}:
        decoding |= SAMPLING
    if not given.keys() & {*LENGTHS}:
        decoding["max_gen_toks"] = TASK_MAX_GEN_TOKS
    return decoding


def _find_fault(document: Document) -> str | None:
    """Why a document could not be scored; None where it can."""
    for field in ("problem", "answer"):
        if document.get(field) is None:  # of a file with other rows, it is None where it lacks
            document = {name: value for name, value in document.items() if value is not None}
            return f"expected field '{field}', found {', '.join(document)}; rename it, or use process_docs"
    problem, answer, tolerance = document["problem"], document["answer"], document.get("tolerance")
    if not isinstance(problem, str) or not problem.strip():
        return f"problem={problem!r} is not a text"
    if not (_is_number(answer) or (isinstance(answer, str) and answer.strip())):
        return f"answer={answer!r} is neither a text nor a number"
    if tolerance is not None and not (_is_number(tolerance) and tolerance >= 0):
        return f"tolerance={tolerance!r} is not a number of at least 0"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _choose_metrics(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of `metric_list`: those that the task file names, else all for its number of samples."""
    task, samples = config.get("task"), config["repeats"]
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise ArgumentError(f"task {task}: repeats={samples!r} is not a whole number of at least 1")
    entries = {entry["metric"]: entry for entry in list_metrics(samples)}
    if config.get("metric_list") is None:
        return list(entries.values())
    for entry in config["metric_list"]:
        if entry.get("metric") not in entries:
            raise ArgumentError(
                f"task {task}: metric '{entry.get('metric')}' cannot be computed from {samples} samples a problem (repeats); "
                f"expected some of {', '.join(entries)}"
            )
    return [entries[entry["metric"]] for entry in config["metric_list"]]


def _warn_if_identical(instances: Sequence[Instance]) -> None:
    """Warn if all sampled texts of each problem are the same: pass@k is acc then. Short texts may be alike by chance."""
    same = len(instances) > 1 and all(i.repeats > 1 and len(set(i.resps)) == 1 for i in instances)
    if same and sum(len(i.resps[0]) for i in instances) >= _TELLING:
        _log.warning(
            "all samples of every problem are the same text, so pass@k and maj@k equal acc; the model probably fixes "
            "its seed (lm-eval's API models send seed=1234: add --gen_kwargs seed=None)"
        )


# Tasks by name


def find_tasks(
    names: Collection[str],
    include: Path | None,
    *,
    of_run: Collection[str] = (),
    option: str = "--tasks",
    metadata: dict[str, Any] | None = None,
) -> TaskManager:
    """A manager of these tasks: of this package's and those of `include` alone, where that is enough, which saves seconds.

    Raises ArgumentError for a name that is not known: one that `option` gave, or a task `of_run`.
    """
    own = [] if include is None else [str(include)]
    manager = TaskManager(include_path=[str(TASK_CONFIGS), *own], include_defaults=False, metadata=metadata)
    near = of_run or manager.all_tasks  # lm-eval's own are thousands
    if not all(name in manager.all_tasks for name in names):
        manager = TaskManager(include_path=own, metadata=metadata)
    for name in names:
        if name in of_run and name not in manager.all_tasks:
            place = "is not installed" if include is None else f"is not in '{include}'"
            raise ArgumentError(f"task '{name}' of the run {place}; give --include_path, the folder of its task file")
        if name not in manager.all_tasks:
            raise ArgumentError(
                f"{option} '{name}' is not known; {nearest(name, near)}{'' if own else '; tasks of yours need --include_path'}"
            )
    return manager


def load_named_tasks(
    names: Sequence[str],
    include: Path | None = None,
    option: str = "--tasks",
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The tasks and groups that an option of a command names. Raises ArgumentError for what is unknown or cannot be loaded."""
    try:
        return dict(find_tasks(names, include, option=option, metadata=metadata).load(list(names))["tasks"])
    except TakeoverError:
        raise
    except Exception as error:  # the hub, the network and a task's own code each raise their own kinds
        raise ArgumentError(f"{option} {','.join(names)} cannot be loaded: {first_line(error)}") from error

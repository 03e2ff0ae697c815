"""GPQA-Diamond as a task class, for what a YAML file cannot say: access on the hub, and questions that stay out of logs."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import datasets
from lm_eval.api.instance import Instance

from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.tasks.sampled import SampledTask

WITHHELD = "withheld: the authors of GPQA ask that its questions not be published"
_log = logging.getLogger(__name__)
WITHHOLDING: set[str] = set()  # names of the tasks of this process whose questions are written nowhere


class GPQA(SampledTask):
    """A multiple-choice task over a gated data set, with two switches in its metadata (or lm-eval's `--metadata`).

    `optional`: without the data set there is a notice and no score, but no error. `withhold_questions`: logged samples have no
    questions, prompts and responses; letters, outcomes, record ids and the canary string stay.
    """

    prompts: ClassVar[Mapping[str, str]] = {}  # they have no place for the choices

    def __init__(self, config: dict[str, Any]):
        metadata = config.get("metadata") or {}
        self.optional = bool(metadata.get("optional"))
        self.withholds = bool(metadata.get("withhold_questions"))
        self.missing = False
        self._scored = False
        super().__init__(config=config)
        (WITHHOLDING.add if self.withholds else WITHHOLDING.discard)(self.config.task)

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

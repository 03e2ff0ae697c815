"""A model that writes nothing: its answers are those of a run."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.journal import Sample
from lm_eval_takeover.runs.stored import StoredRun
from lm_eval_takeover.runs.tally import Tally, summarize_tallies
from lm_eval_takeover.storage.digests import digest_of

Place = tuple[str, str, int, int]  # task, digest of the document, request of the document, repeat


class StoredResponses(LM):  # type: ignore[misc]
    """A model that writes nothing: its answers are those of a run, found by document."""

    def __init__(self, run: StoredRun, answers: Mapping[Place, Sample]) -> None:
        super().__init__()
        self.run, self.answers = run, answers
        self.tally: defaultdict[str, Tally] = defaultdict(Tally)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        repeats: Counter[int] = Counter()
        texts: list[str] = []
        for instance in requests:
            number = repeats[id(instance)]
            repeats[id(instance)] += 1
            task = instance.task_name or "none"
            sample = self.answers[task, digest_of(instance.doc), instance.idx, number]
            if number == sample.sample:  # one text of a greedy run stands for all samples of its document
                self.tally[task].add(sample)
            texts.append(sample.response)
        return texts

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        raise RunDirError("a journal holds generated texts, not log-likelihoods; leave those tasks out of --tasks")

    loglikelihood_rolling = loglikelihood

    def get_model_info(self) -> dict[str, Any]:
        described = self.run.facts.get("takeover") or {}
        times: dict[str, Any] = {"attempts": self.run.attempts, "seconds": round(self.run.seconds, 3), "rescored": True}
        times["run_dir"] = (self.run.facts.get("arguments") or {}).get("run_dir")
        return {"takeover": described | summarize_tallies(self.tally) | times}

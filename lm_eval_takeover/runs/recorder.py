"""The samples of one model in its run_dir: under which keys they are, which are finished, and where new ones go."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance

from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import OBSERVED, Generation, Request
from lm_eval_takeover.runs.evidence import TraceHeader, pack_trace
from lm_eval_takeover.runs.identity import list_versions, sample_key
from lm_eval_takeover.runs.journal import AskedSample, Prompt, Sample
from lm_eval_takeover.runs.parquet import make_prompt
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.tasks.context import Evaluation

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """What is asked for: a request for each of lm-eval's instances, which of them each text answers, rows of the journal, and
    the texts that are finished.
    """

    requests: Sequence[Request]
    by_key: Mapping[bytes, Sequence[int]]  # indices of the requests that one text answers
    asked: Sequence[AskedSample]
    prompts: Sequence[Prompt]
    stored: Mapping[bytes, Sample]


class Recorder:
    """Finds samples in a run_dir and adds new ones. Without one (`run` is None), none is found and none is saved."""

    def __init__(self, run: RunWriter | None, facts: Mapping[str, Any], policy: Policy, evaluation: Evaluation) -> None:
        self.run, self.policy, self.evaluation = run, policy, evaluation
        self.identity, self._facts = digest_of(facts["settings"]), facts
        writers = policy.writes(taken_over=False), policy.writes(taken_over=True)
        self._header = TraceHeader("", writers, policy.window if policy.scorer is not None else None)

    def plan(self, instances: Sequence[Instance], requests: Sequence[Request], indices: Sequence[int]) -> RequestPlan:
        """The plan for the wanted indices into `requests`, which are in their order."""
        by_key: dict[bytes, list[int]] = {}
        for i in indices:
            by_key.setdefault(sample_key(self.identity, requests[i]), []).append(i)
        digests: dict[int, tuple[str, str]] = {}  # by id: the repeats of a document are one instance
        asked, prompts = list[AskedSample](), list[Prompt]()
        for key, i in ((key, i) for key, of_key in by_key.items() for i in of_key):
            instance, doc_id = instances[i], self.evaluation.find_doc_id(instances[i])
            if id(instance) not in digests:
                prompts.append(make_prompt(instance, requests[i], doc_id))
                digests[id(instance)] = digest_of(instance.doc), digest_of(prompts[-1])
            doc, prompt = digests[id(instance)]
            asked.append(AskedSample(instance.task_name or "none", doc, instance.idx, requests[i].sample, doc_id, prompt, key))
        return RequestPlan(requests, by_key, asked, prompts, self.run.find(list(by_key)) if self.run else {})

    def begin(self, instances: Sequence[Instance], plan: RequestPlan, identities: Mapping[str, str]) -> None:
        """Enter the command and all that it asks for, and say how much is finished. The identities of its tasks make it."""
        if self.run is None:
            return
        decoding = sorted({(i.task_name or "none", json.dumps(i.args[1], sort_keys=True)) for i in instances})
        facts = {**self._facts, "tasks": [[task, json.loads(settings)] for task, settings in decoding]}
        command = digest_of([self.identity, identities])
        self.run.begin(command, facts, plan.asked, plan.prompts)
        self._header = replace(self._header, command=command)
        earlier = [before for before, _ in self.run.read_attempts()[:-1]]
        if earlier and earlier[-1].get("library_versions") != facts["library_versions"]:
            logger.warning(
                "run_dir='%s': earlier samples were written with %s, these are with %s; rounding may differ",
                self.run.folder, list_versions(earlier[-1]), list_versions(facts),
            )  # fmt: skip
        self.run.samples_kept += (finished := len(plan.stored))
        if finished:
            counts = self.run.folder, finished, len(plan.by_key), len(plan.by_key) - finished
            logger.warning("run_dir='%s': %d of %d samples are finished already; %d are left to write", *counts)
        elif len(commands := self.run.list_facts()) > 1:
            now, before = commands[:2]
            settings = [name for name, value in now["settings"].items() if value != before["settings"].get(name)]
            reason = ", ".join(settings) or ("prompts" if now["tasks"] == before["tasks"] else "tasks or their decoding")
            text = "run_dir='%s': 0 of %d samples can be used; earlier ones differ in %s"
            logger.warning(text, self.run.folder, len(plan.by_key), reason)

    def add(
        self, key: bytes, instance: Instance, request: Request, generation: Generation, text: str, *, truncated: bool
    ) -> Sample:
        """The finished sample of a request, without its trace, with which it is kept."""
        policy, passes = self.policy, (generation.base_passes, generation.guide_passes)
        name = instance.task_name or "none", self.evaluation.find_doc_id(instance), request.sample
        tokens = len(generation.tokens), generation.takeovers
        costs = count_changed(policy, generation), count_asked(policy, generation)
        sample = Sample(key, *name, text, *tokens, *costs, *passes, truncated, *count_spikes(policy, generation))
        if self.run is not None:
            self.run.add(replace(sample, trace=pack_trace(generation, self._header)))
        return sample


# Costs follow from the method, not from the engine: the length of drafts changes only passes.


def is_changed_traced(policy: Policy) -> bool:
    """Whether it takes a trace to say which tokens are not the host's draw."""
    return None not in (policy.host, policy.donor) and (policy.scorer is not None or policy.needs_token)


def count_changed(policy: Policy, generation: Generation) -> int | None:
    """Tokens that are not the host's draw there. None without a trace, and where the host is not asked, as in `random`."""
    if policy.donor is None:
        return 0
    if generation.observed is None or not is_changed_traced(policy):
        return None
    observed = np.frombuffer(generation.observed, np.float32).reshape(-1, len(OBSERVED))
    host_tokens = observed[:, OBSERVED.index("host_token")]
    written = np.array(generation.tokens[len(generation.tokens) - len(host_tokens) :], np.float32)
    return None if np.isnan(host_tokens).any() else int((host_tokens != written).sum())


def count_asked(policy: Policy, generation: Generation) -> int:
    """Tokens whose donor's distribution is needed to decide or to write, and those of an answer that the donor writes first."""
    needed = len(generation.tokens) if policy.drafts else generation.takeovers
    return needed + generation.donor_answer


def count_spikes(policy: Policy, generation: Generation) -> tuple[float | None, int | None]:
    """The sum of the scores in nats, and how many are above tau: the spikes, some of which the window test refuses.

    None without a gate; the sum also where a score is not known (inside a segment) or not finite, and of signed scores.
    """
    if policy.gate is None:
        return None, None
    scores = np.array(generation.scores)
    total = float(scores.sum())
    known = 0 <= total < np.inf and not (policy.scorer and policy.scorer.signed)
    return total if known else None, int((scores > policy.gate.tau).sum())

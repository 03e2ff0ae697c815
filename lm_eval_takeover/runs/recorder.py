"""The samples of one model in its run_dir: under which keys they are, which are finished, and where new ones go."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance

from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import OBSERVED, Generation, Request
from lm_eval_takeover.runs.identity import list_versions, sample_key
from lm_eval_takeover.runs.journal import AskedSample, Sample
from lm_eval_takeover.runs.parquet import TraceHeader, make_prompt, pack_trace
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.tasks.verdicts import find_doc_id

logger = logging.getLogger(__name__)

ByKey = Mapping[bytes, Sequence[int]]  # indices of the requests that one text answers


class Recorder:
    """Finds samples in a run_dir and adds new ones. Without one (`run` is None), none is found and none is saved."""

    def __init__(self, run: RunWriter | None, settings: Mapping[str, Any], facts: Mapping[str, Any], policy: Policy) -> None:
        self.run, self.settings = run, settings
        self._identity, self._facts = digest_of(settings), facts
        writers = policy.writes(taken_over=False), policy.writes(taken_over=True)
        self._header = TraceHeader("", writers, policy.window if policy.scorer is not None else None)

    def group_by_key(self, requests: Sequence[Request], indices: Sequence[int]) -> dict[bytes, list[int]]:
        """The wanted indices into `requests` by the key of their text, in their order."""
        by_key: dict[bytes, list[int]] = {}
        for i in indices:
            by_key.setdefault(sample_key(self._identity, requests[i]), []).append(i)
        return by_key

    def begin(
        self,
        instances: Sequence[Instance],
        requests: Sequence[Request],
        by_key: ByKey,
        asked: Sequence[AskedSample],
        identities: Mapping[str, str],
    ) -> None:
        """Enter the command and all that it asks for. The identities of its tasks make it."""
        if self.run is None:
            return
        decoding = sorted({(i.task_name or "none", json.dumps(i.args[1], sort_keys=True)) for i in instances})
        facts = {**self._facts, "tasks": [[task, json.loads(settings)] for task, settings in decoding]}
        command = digest_of([self._identity, identities])
        self.run.begin(command, facts, asked)
        firsts = {id(instances[i]): i for indices in by_key.values() for i in indices}
        self.run.add_prompts([make_prompt(instances[i], requests[i]) for i in firsts.values()])
        self._header = replace(self._header, command=command)
        earlier = [before for before, _ in self.run.read_attempts()[:-1]]
        if earlier and earlier[-1].get("library_versions") != facts["library_versions"]:
            logger.warning(
                "run_dir='%s': earlier samples were written with %s, these are with %s; rounding may differ",
                self.run.folder, list_versions(earlier[-1]), list_versions(facts),
            )  # fmt: skip

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Sample]:
        """The samples of these keys that are finished; says how many there are."""
        finished = self.run.find(keys) if self.run else {}
        if self.run and finished:
            self.run.samples_kept += len(finished)
            counts = self.run.folder, len(finished), len(keys), len(keys) - len(finished)
            logger.warning("run_dir='%s': %d of %d samples are finished already; %d are left to write", *counts)
        elif self.run and len(commands := self.run.list_facts()) > 1:
            now, before = commands[:2]
            settings = [name for name, value in now["settings"].items() if value != before["settings"].get(name)]
            reason = ", ".join(settings) or ("prompts" if now["tasks"] == before["tasks"] else "tasks or their decoding")
            text = "run_dir='%s': 0 of %d samples can be used; earlier ones differ in %s"
            logger.warning(text, self.run.folder, len(keys), reason)
        return finished

    def add(self, sample: Sample, generation: Generation) -> None:
        """Hand over a new sample with its trace."""
        if self.run is not None:
            self.run.add(replace(sample, trace=pack_trace(generation, self._header)))


def make_sample(
    key: bytes, instance: Instance, request: Request, generation: Generation, text: str, policy: Policy, truncated: bool
) -> Sample:
    """A finished sample without its trace."""
    name = instance.task_name or "none", find_doc_id(instance.task_name, instance.doc_id), request.sample
    tokens = len(generation.tokens), generation.takeovers
    costs = count_changed(policy, generation), count_asked(policy, generation)
    passes = generation.base_passes, generation.guide_passes
    return Sample(key, *name, text, *tokens, *costs, *passes, truncated, *count_spikes(policy, generation))


# Costs follow from the method, not from the engine: the length of drafts changes only passes.


def count_changed(policy: Policy, generation: Generation) -> int | None:
    """Tokens that are not the host's draw there. None without a trace, and where the host is not asked, as in `random`."""
    if policy.donor is None:
        return 0
    asks_host = policy.host is not None and (policy.scorer is not None or policy.needs_token)
    if generation.observed is None or not asks_host:
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


def list_asked(instances: Sequence[Instance], requests: Sequence[Request], by_key: ByKey) -> list[AskedSample]:
    """Of each request, which sample of which document it wants, and the key of the answer."""
    digests: dict[int, tuple[str, str]] = {}  # by id: the repeats of a document are one instance
    asked = []
    for key, indices in by_key.items():
        for i in indices:
            instance = instances[i]
            if id(instance) not in digests:
                digests[id(instance)] = digest_of(instance.doc), digest_of(make_prompt(instance, requests[i]))
            doc, prompt = digests[id(instance)]
            task, doc_id = instance.task_name or "none", find_doc_id(instance.task_name, instance.doc_id)
            asked.append(AskedSample(task, doc, instance.idx, requests[i].sample, doc_id, prompt, key))
    return asked

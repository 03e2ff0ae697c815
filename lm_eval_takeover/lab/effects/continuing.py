"""Continuations of the two tokens of each position: written in one batch, saved as they finish, found by the next call."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from lm_eval_takeover import stopping
from lm_eval_takeover.backends import Backend
from lm_eval_takeover.decoding.rows import StopStrings, is_cut_off, text_of
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.runs.identity import collect_text_settings, sample_key
from lm_eval_takeover.runs.journal import Sample
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.tasks.verdicts import Response


@dataclass(frozen=True, slots=True)
class Continued:
    """A text with a forced token: its ids from that token on, and the whole text as lm-eval gets it."""

    tokens: tuple[int, ...]
    response: Response


@dataclass(frozen=True, slots=True)
class Writer:
    """Both models of a pair, the numbers that its texts are drawn with, and the journal that keeps them."""

    backend: Backend
    pair: Pair
    seed: int
    trust_remote_code: bool
    run: RunWriter

    @classmethod
    def open(cls, folder: Path, backend: Backend, pair: Pair, seed: int, trust_remote_code: bool) -> "Writer":
        """With its journal in this folder. Raises RunDirError where another process is at work there."""
        run = RunWriter(folder)
        stopping.on_stop(run.describe_kept)
        return cls(backend, pair, seed, trust_remote_code, run)

    def draw(self, policy: Policy, requests: Sequence[Request]) -> list[int]:
        """The next token of each request, which has room for one."""
        return [_read_tokens(sample)[-1] for sample in self._write(policy, requests, "tokens")]

    def respond(self, policy: Policy, requests: Sequence[Request]) -> list[Continued]:
        """The continuation of each request to its end."""
        continued = []
        for request, sample in zip(requests, self._write(policy, requests, "texts"), strict=True):
            new = _read_tokens(sample)
            text = text_of(self.pair.tokenizer, (*request.begun, *new), request.until)
            continued.append(Continued((request.begun[-1], *new), Response(text, sample.truncated)))
        return continued

    def _write(self, policy: Policy, requests: Sequence[Request], kind: str) -> list[Sample]:
        """A sample for each request: kept from an earlier call, or written. Its `text` are the ids of its tokens."""
        backend, trusted = self.backend.identity, self.trust_remote_code
        settings = collect_text_settings(self.pair, policy, backend=backend, seed=self.seed, trust_remote_code=trusted)
        digest = digest_of(settings)
        keys = [sample_key(f"ids {digest}", request) for request in requests]
        samples = self.run.find(keys)
        left = [(key, request) for key, request in dict(zip(keys, requests, strict=True)).items() if key not in samples]
        done = len(keys) - len(left)
        with self.run.flushing(), tqdm(total=len(keys), initial=done, desc=f"Writing {kind}") as bar:
            for key, request, generation in self._generate(policy, left):
                samples[key] = self._make_sample(key, request, generation)
                self.run.add(samples[key])
                bar.update()
        return [samples[key] for key in keys]

    def _generate(self, policy: Policy, left: Sequence[tuple[bytes, Request]]) -> Iterator[tuple[bytes, Request, Generation]]:
        """The texts of these requests; one that its last token has ended needs no model."""
        asked = []
        for key, request in left:
            stop = StopStrings(self.pair.tokenizer, request.until)
            if request.begun and (request.begun[-1] in self.pair.eos_ids or stop.found(request.begun)):
                yield key, request, Generation.begin(request, traced=False)
            else:
                asked.append((key, request))
        if not asked:
            return
        requests = [request for _, request in asked]
        rows = self.backend.fit_rows(max(len(request.prompt) + request.max_new_tokens for request in requests))
        for place, generation in self.backend.generate(requests, seed=self.seed, rows=rows, policy=policy):
            yield *asked[place], generation

    def _make_sample(self, key: bytes, request: Request, generation: Generation) -> Sample:
        """As it is kept. Its name is in its key alone: a continuation is no sample of a task."""
        new = generation.tokens[len(request.begun) :]
        cut = is_cut_off(self.pair.tokenizer, generation.tokens, request, self.pair.eos_ids)
        counts = len(new), generation.takeovers, None, 0  # changed, asked: of no concern
        passes = generation.base_passes, generation.guide_passes
        return Sample(key, "", 0, request.sample, " ".join(map(str, new)), *counts, *passes, truncated=cut)


def _read_tokens(sample: Sample) -> tuple[int, ...]:
    return tuple(map(int, sample.text.split()))

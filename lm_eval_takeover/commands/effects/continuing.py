"""Texts behind the two tokens of each position: written in one batch, kept as they finish, found again by the next call."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lm_eval_takeover import stopping
from lm_eval_takeover.backends import Backend
from lm_eval_takeover.decoding.stop_strings import StopStrings, is_cut_off, text_of
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.runs.journal import Sample
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.runs.sample_keys import collect_text_settings, sample_key
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.tasks.responses import Response


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
        return [int(one.text) for one in self._write(policy, requests, "tokens", _last_token)]

    def respond(self, policy: Policy, requests: Sequence[Request]) -> list[Response]:
        """The response of each request to its end: its whole text, and whether the token limit ended it."""
        return [one.response for one in self._write(policy, requests, "texts", self._text_of)]

    def _write(
        self,
        policy: Policy,
        requests: Sequence[Request],
        kind: str,
        describe: Callable[[Request, Generation], tuple[str, bool]],
    ) -> list[Sample]:
        """A sample for each request: found, finished already, or written."""
        settings = digest_of(
            collect_text_settings(
                self.pair,
                policy,
                backend=self.backend.identity,
                seed=self.seed,
                trust_remote_code=self.trust_remote_code,
            )
        )
        keys = [sample_key(f"{kind} {settings}", request) for request in requests]
        found = self.run.find(keys)
        left = [(key, one) for key, one in dict(zip(keys, requests, strict=True)).items() if key not in found]
        with self.run.flushing(), tqdm(total=len(keys), initial=len(keys) - len(left), desc=f"Writing {kind}") as bar:
            for key, request, generation in self._generate(policy, left):
                text, cut = describe(request, generation)
                found[key] = _make_sample(key, request, generation, text, cut)
                self.run.add(found[key])
                bar.update()
        return [found[key] for key in keys]

    def _generate(
        self, policy: Policy, left: Sequence[tuple[bytes, Request]]
    ) -> Iterator[tuple[bytes, Request, Generation]]:
        """What these requests come to; a text that its last token has ended already needs no model."""
        asked = []
        for key, request in left:
            if self._is_ended(request):
                yield key, request, Generation.begin(request, traced=False)
            else:
                asked.append((key, request))
        if not asked:
            return
        requests = [request for _, request in asked]
        rows = self.backend.fit_rows(max(len(one.prompt) + one.max_new_tokens for one in requests))
        for place, generation in self.backend.generate(requests, seed=self.seed, rows=rows, policy=policy):
            yield *asked[place], generation

    def _is_ended(self, request: Request) -> bool:
        stop = StopStrings(self.pair.tokenizer, request.until)
        return bool(request.begun) and (request.begun[-1] in self.pair.eos_ids or stop.found(request.begun))

    def _text_of(self, request: Request, generation: Generation) -> tuple[str, bool]:
        text = text_of(self.pair.tokenizer, generation.tokens, request.until)
        return text, is_cut_off(self.pair.tokenizer, generation.tokens, request, self.pair.eos_ids)


def _last_token(request: Request, generation: Generation) -> tuple[str, bool]:
    return str(generation.tokens[-1]), False


def _make_sample(key: bytes, request: Request, generation: Generation, text: str, cut: bool) -> Sample:
    """As it is kept. Its name is in its key alone: a continuation is no sample of a task."""
    counts: dict[str, Any] = {
        "tokens": len(generation.tokens) - len(request.begun),
        "takeovers": generation.takeovers,
        "changed": None,
        "asked": 0,
        "base_passes": generation.base_passes,
        "guide_passes": generation.guide_passes,
    }
    return Sample(key=key, task="", doc_id=0, sample=request.sample, text=text, truncated=cut, **counts)

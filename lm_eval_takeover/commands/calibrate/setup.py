"""The inputs of a calibration: a pair, prompts, and how rollouts are drawn."""

import hashlib
import importlib.metadata
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lm_eval_takeover.commands.calibrate.prompts import Prompts
from lm_eval_takeover.commands.calibrate.score_parts import ScoreParts
from lm_eval_takeover.decoding.engine import generate
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.policy import DIRECTIONS, Policy
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.request import TASK_MAX_GEN_TOKS, TASK_SAMPLING, Request, Sampling
from lm_eval_takeover.pair.load_options import text_settings
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.runs.progress import Progress

if TYPE_CHECKING:
    from lm_eval_takeover.vllm.backend import VllmBackend

logger = logging.getLogger(__name__)

LIBRARIES = ("lm-eval-takeover", "torch", "transformers")  # whose versions a calibration file names


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Rollouts of a pair's host on prompts, to an end token or `until`; `backend` is vLLM's, if it writes."""

    pair: Pair
    prompts: Prompts
    direction: Literal["forward", "reverse"] = "forward"
    sampling: Sampling = TASK_SAMPLING
    max_gen_toks: int = TASK_MAX_GEN_TOKS
    until: tuple[str, ...] = ()
    seed: int = 0
    batch_size: int = 64
    window: int = 10
    progress: bool = True
    backend: "VllmBackend | None" = None

    @property
    def roles(self) -> tuple[str, str]:
        """The host and the donor."""
        return DIRECTIONS[self.direction]

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings of the rollouts, as a calibration file holds them."""
        settings = {"max_gen_toks": self.max_gen_toks, "until": list(self.until), "seed": self.seed}
        return asdict(self.sampling) | settings

    def describe(self) -> dict[str, Any]:
        """Models, prompts, decoding and libraries, as a calibration file has them."""
        base, guide = self.pair.member("base"), self.pair.member("guide")
        return {
            "base": base.id,
            "guide": guide.id,
            "vocabulary": {"size": self.pair.vocabulary.size, "digest": self.pair.vocabulary.digest},
            "dtypes": {member.role: str(member.model.dtype) for member in (base, guide)},
            "library_versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
            "direction": self.direction,
            "prompts": self.prompts.source,
            "decoding": self.decoding,
            "diagnostic": self.prompts.benchmarks,
        }

    def open_parts(self, out: Path, scores: Sequence[Score]) -> ScoreParts:
        """Where the finished rollouts of this calibration stay, beside `out`; another calibration has another folder."""
        measured = {
            **{m.role: [str(m.id), str(m.dtype), text_settings(m.given)] for m in self.pair.members},
            "draw": "race",
            "vocabulary": self.pair.vocabulary.digest,
            "direction": self.direction,
            "prompts": self.prompts.source["digest"],
            "plugins": {score.name: score.source.digest for score in scores if score.source.digest is not None},
            **self.decoding,
        }
        key = hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()
        parts = ScoreParts(out.with_name(f".{out.name}.{key[:12]}.partial"), scores)
        others = [folder.name for folder in out.parent.glob(f".{out.name}.*.partial") if folder != parts.folder]
        if others:
            logger.warning("rollouts of calibrations with other settings are kept beside --out: %s", ", ".join(others))
        return parts

    def make_requests(self, texts: Sequence[str], numbers: Sequence[int]) -> list[Request]:
        """One request per prompt; `numbers` are their rows. Raises a TakeoverError where none fits or one cannot be read."""
        limit = self.pair.max_length or 2**31
        requests = []
        for number, text in zip(numbers, texts, strict=True):
            ids = tuple(self.pair.encode(text))
            if ids and (room := limit - len(ids)) >= 1:
                label = f"calibration prompt {number + 1}"
                self.pair.check_ids(ids, label)
                requests.append(Request(ids, 0, min(self.max_gen_toks, room), self.sampling, self.until, label))
        if not requests:
            raise ArgumentError(f"--prompts: all {len(texts)} are empty or exceed the context of {limit} tokens")
        if left_out := len(texts) - len(requests):
            logger.warning("%d prompts are empty or longer than the context of %d tokens; left out", left_out, limit)
        return requests

    def write(self, requests: Sequence[Request], policy: Policy, bar: Progress) -> Iterator[tuple[int, Generation]]:
        """`(index into requests, generation)` as texts finish."""
        options: dict[str, Any] = {"seed": self.seed, "count_tokens": bar.count_tokens}
        if self.backend is not None:
            return self.backend.generate(requests, policy=policy, **options)
        return generate(self.pair, policy, requests, batch_size=self.batch_size, **options)

"""Requests (one sample of a prompt, and how its tokens are drawn) and finished samples."""

import math
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from lm_eval_takeover.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn, as in transformers: temperature (0: greedy), then top-k (0: all), top-p (1: all), min-p (0: all)."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0  # the least probability that is kept, as a share of the likeliest token's

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or 1e-6 <= self.temperature < float("inf")):
            raise ArgumentError(f"temperature={self.temperature} is neither 0 (greedy) nor a number of at least 1e-6")
        if not 0 < self.top_p <= 1:
            raise ArgumentError(f"top_p={self.top_p} is outside (0, 1]; 1 keeps every token")
        if self.top_k < 0:
            raise ArgumentError(f"top_k={self.top_k} is negative; 0 keeps every token")
        if not 0 <= self.min_p <= 1:
            raise ArgumentError(f"min_p={self.min_p} is outside [0, 1]; 0 keeps every token")

    def settings(self) -> dict[str, Any]:
        """Its settings by name; min_p where it cuts, so that digests and files without it stay as they are."""
        return {name: value for name, value in asdict(self).items() if name != "min_p" or value}


GREEDY = Sampling()
TASK_SAMPLING = Sampling(temperature=0.6, top_p=0.95)  # the paper's (appendix A.1), and so that of task_configs/
TASK_MAX_GEN_TOKS = 16_384  # of task_configs/: the models end their texts, not the limit


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate."""

    prompt: tuple[int, ...]
    sample: int = 0
    max_new_tokens: int = 256
    sampling: Sampling = GREEDY
    until: tuple[str, ...] = ()
    label: str = ""  # names it in errors
    donor_length: int = 0  # tokens of the donor's own answer, where a policy needs to know it
    begun: tuple[int, ...] = ()  # the first tokens of a text that goes on; they count in `max_new_tokens` and in positions
    begun_scores: tuple[float, ...] = ()  # of the last of them, in nats, where a gate must know them: of its window, or all

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ArgumentError(f"the prompt of {self.label or 'a request'} has no tokens")
        if self.max_new_tokens < 1:
            raise ArgumentError(f"max_gen_toks={self.max_new_tokens} is not at least 1 token")
        if len(self.begun) >= self.max_new_tokens:
            begun = f"{len(self.begun)} tokens of {self.label or 'a text'}"
            raise ArgumentError(f"max_gen_toks={self.max_new_tokens} leaves no room after {begun}")

    @property
    def text(self) -> tuple[int, ...]:
        """The prompt and the begun tokens: what a model reads first."""
        return (*self.prompt, *self.begun)


OBSERVED = ("base_entropy", "host_logprob", "donor_logprob", "donor_rank", "host_token")  # of traces, by `observe`
# Of scores, by `compare`.
COMPARED = tuple(f"{role}_{measure}" for measure in ("entropy", "logprob", "rank", "top") for role in ("base", "guide"))
COUNTED = COMPARED[4:]  # of these the whole numbers

CountTokens = Callable[[int, int | None], None]  # gets tokens as they are emitted, and how many are takeovers, if that is known


@dataclass(slots=True)
class Generation:
    """One finished sample. All three lists have one entry per token, the end token and those that it began with included."""

    tokens: list[int] = field(default_factory=list)
    taken_over: list[bool] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)  # nats, NaN under a policy that asks for none
    base_passes: int = 0  # forward passes of this row, prefill apart
    guide_passes: int = 0
    donor_answer: int = 0  # tokens of the donor's own answer, where a policy needs its length
    thought_cut: bool = False  # whether a thinking budget has ended its thinking
    observed: "array[float] | None" = None  # where a trace is wanted: `OBSERVED` of each token, except those it began with

    @classmethod
    def begin(cls, request: Request, traced: bool) -> Self:
        """Before the first token is drawn."""
        count = len(request.begun)
        unknown = [math.nan] * (count - len(request.begun_scores))
        scores = [*unknown, *request.begun_scores]
        return cls(list(request.begun), [False] * count, scores, observed=array("f") if traced else None)

    def count_passes(self, role: str, passes: int) -> None:
        """Add passes of this model; the sum is never below 0."""
        setattr(self, f"{role}_passes", max(getattr(self, f"{role}_passes") + passes, 0))

    @property
    def takeovers(self) -> int:
        return sum(self.taken_over)

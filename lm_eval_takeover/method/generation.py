"""The nouns that every engine shares: what is asked for and what comes back."""

import logging
import traceback
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lm_eval_takeover.errors import ArgumentError, ModelOutputError, TakeoverError
from lm_eval_takeover.method.sampling import GREEDY, Sampling

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate. `label` names it in errors; `early_tokens` is read by the policy `early` only."""

    prompt: tuple[int, ...]
    sample: int = 0
    max_new_tokens: int = 256
    sampling: Sampling = GREEDY
    until: tuple[str, ...] = ()
    label: str = ""
    early_tokens: int = 0

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ArgumentError(f"the prompt of {self.label or 'a request'} has no tokens")
        if self.max_new_tokens < 1:
            raise ArgumentError(f"max_gen_toks={self.max_new_tokens} is not at least 1 token")


@dataclass(slots=True)
class Generation:
    """One finished sample. All three lists have one entry per emitted token, the end token included.

    `scores` in nats, NaN under a policy that asks for none. Passes are forward passes of this row, prefill apart. `observed`
    holds, where a trace is wanted, the numbers of `observations.OBSERVED` of one token after the other.
    """

    tokens: list[int] = field(default_factory=list)
    taken_over: list[bool] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    base_passes: int = 0
    guide_passes: int = 0
    observed: "array[float] | None" = None

    def count_passes(self, role: str, passes: int) -> None:
        """Add so many passes of this model; never below 0."""
        if role == "base":
            self.base_passes = max(self.base_passes + passes, 0)
        else:
            self.guide_passes = max(self.guide_passes + passes, 0)

    @property
    def takeovers(self) -> int:
        return sum(self.taken_over)


class Failures:
    """Requests that a model could not answer, beside which all others are finished.

    Raises in `add` once so many prompts failed one after another that no other one is to be expected to succeed.
    """

    GIVE_UP = 32  # prompts

    def __init__(self, total: int) -> None:
        self.total = total
        self._errors: list[TakeoverError] = []
        self._in_a_row: set[tuple[int, ...]] = set()

    def add(self, request: Request, error: Exception) -> None:
        if not isinstance(error, TakeoverError):
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
            logger.error("%s failed:\n%s", request.label, "".join(traceback.format_exception(error)).rstrip())
            error = ModelOutputError(f"{request.label}: {type(error).__name__}: {reason}")
        else:
            logger.error("%s", error)
        self._errors.append(error.with_traceback(None))  # its frames hold the caches of both models
        self._in_a_row.add(request.prompt)
        if len(self._in_a_row) == self.GIVE_UP:
            self.check(f"; gave up after {self.GIVE_UP} prompts in a row")

    def succeeded(self) -> None:
        self._in_a_row.clear()

    def check(self, rest: str = "; all others are finished") -> None:
        """Raise the first failure, if there is any."""
        if not self._errors:
            return
        first, count = self._errors[0], len(self._errors)
        if self.total == 1:
            raise first
        more = "" if count == 1 else f" (and {count - 1} more, logged above)"
        raise type(first)(f"{first}{more}; {count} of {self.total} requests failed{rest}")


class StopStrings:
    """Whether the text of the tokens so far holds one of the `until` strings (special tokens included)."""

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._strings = [string for string in strings if string]
        # Some tokenizers take spaces away before what comes next, which only token by token shows.
        self._rewrites = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        # Every token but a part of a character is at least one byte long; the first few may be such parts.
        self._lookback = max((len(string.encode()) for string in self._strings), default=0) + 4

    def found(self, tokens: Sequence[int]) -> bool:
        """Whether a string has been written."""
        if not self._strings:
            return False
        return self._in(tokens[-self._lookback :])

    def may_end_in(self, before: Sequence[int], new: Sequence[int]) -> bool:
        """Whether `found` can become true at one of the tokens `new` after those before."""
        if not self._strings or self._rewrites:
            return bool(self._strings)
        return self._in([*before[-self._lookback :], *new])

    def _in(self, tokens: Sequence[int]) -> bool:
        text = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return any(string in text for string in self._strings)


def text_of(tokenizer: Any, tokens: Sequence[int], until: Sequence[str]) -> str:
    """The response as lm-eval's `hf` gives it: special tokens skipped, cut before the first stop string."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    for string in until:
        if string:
            text = text.split(string)[0]
    return text

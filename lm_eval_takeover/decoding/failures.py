"""Collects the requests that a model could not answer, while all others are finished."""

import logging
import traceback

from lm_eval_takeover.errors import ModelOutputError, TakeoverError
from lm_eval_takeover.method.request import Request

logger = logging.getLogger(__name__)


class Failures:
    """Counts failures. `add` raises after `GIVE_UP` failed prompts in a row."""

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

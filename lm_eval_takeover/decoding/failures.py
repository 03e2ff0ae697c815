"""Collects the requests that a model could not answer, while all others are finished."""

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence

from lm_eval_takeover.errors import ArgumentError, ModelOutputError, PluginError, TakeoverError, is_out_of_memory
from lm_eval_takeover.method.generation import Generation
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
        if is_out_of_memory(error):
            advice = "not enough memory for one sample; give a shorter max_length=… or a smaller dtype=…"
            error = ArgumentError(f"{request.label}: {advice}")
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


def blame(error: Exception, places: Iterable[int]) -> Exception:
    """The error with the requests that were in the failed pass, as their indices. Who knows fewer of them says so first."""
    vars(error).setdefault("places", list(places))
    return error


def isolate(
    write: Callable[..., Iterator[tuple[int, Generation]]],
    requests: Sequence[Request],
    begun: Sequence[Generation],
    failures: Failures,
    batch_size: int,
) -> Iterator[tuple[int, Generation]]:
    """The samples of `write(requests, begun=…, batch_size=…)`. After a failure, unfinished rows go on from their last token.

    The rows that were in the failed pass go on first, the others with the batch size as before. If memory ran out, they have half
    the batch size. After another failure they are halved until the failing request is alone.
    """
    parts = [(list(range(len(requests))), batch_size)]  # unfinished requests and their batch size, the next part last
    at_once = batch_size
    while parts:
        part, size = parts.pop()
        if size > at_once:
            logger.info("trying batch size %d again", size)
        at_once, left = size, dict.fromkeys(part)
        try:
            batch, texts = [requests[i] for i in part], [begun[i] for i in part]
            for place, generation in write(batch, begun=texts, batch_size=size):
                del left[part[place]]
                failures.succeeded()
                yield part[place], generation
        except PluginError:
            raise
        except Exception as error:
            if not left:
                raise
            places = vars(error).pop("places", None) or range(len(part))
            failed = [i for place in places if (i := part[place]) in left]  # none if all of them have ended in that step
            half = min(size, len(failed)) // 2
            if others := [i for i in left if i not in failed]:
                parts.append((others, size))
            if is_out_of_memory(error) and half:
                logger.warning("out of memory; continuing with batch size %d", half)
                parts.append((failed, half))
            elif len(failed) > 1:
                middle = (len(failed) + 1) // 2
                parts += [(failed[middle:], size), (failed[:middle], size)]
            elif failed:
                failures.add(requests[failed[0]], error)

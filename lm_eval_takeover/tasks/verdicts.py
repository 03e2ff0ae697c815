"""Which verifier scores the tasks of this process, and where its verdicts are logged. Light: task files import it."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar

from lm_eval_takeover.answers.samples import Verifier
from lm_eval_takeover.storage.digests import digest_of

T = TypeVar("T")


class Response(str):
    """The text of a sample, on its way through lm-eval to the scoring of a task. `truncated`: its token limit ended it."""

    __slots__ = ("truncated",)
    truncated: bool

    def __new__(cls, text: str, truncated: bool = False) -> Self:
        response = super().__new__(cls, text)
        response.truncated = truncated
        return response


class LoggedVerdict(NamedTuple):
    """The verdict on one response to one document; `doc` and `response` are digests."""

    doc: str
    response: bytes
    answer: str | None
    outcome: str


class VerdictLog(Protocol):
    """Takes verdicts: the run_dir of a run, or who scores its responses again."""

    def add_verdicts(self, verdicts: Iterable[LoggedVerdict]) -> None: ...


_verifier: ContextVar[Verifier] = ContextVar("verifier", default="takeover")
_log: ContextVar[VerdictLog | None] = ContextVar("verdict log", default=None)
_think_end: ContextVar[str] = ContextVar("think_end_token", default="")


get_verifier = _verifier.get  # of the tasks that are made and scored now
get_verdict_log = _log.get  # for the texts that were generated last; None: their verdicts are not logged
set_verdict_log = _log.set
get_think_end = _think_end.get  # what ends the thinking of the model, beside the usual tags; empty: nothing else
set_think_end = _think_end.set


@cache
def identify_scorer(verifier: Verifier) -> str:
    """The digest of all that judges: the code of `answers` and `tasks`, the version of math_verify, the verifier's name."""
    tasks = Path(__file__).parent
    files = sorted(file for folder in (tasks, tasks.with_name("answers")) for file in folder.glob("*.py"))
    sources = [[file.name, file.read_text(encoding="utf-8")] for file in files]
    return digest_of([verifier, metadata.version("math-verify"), sources])


def redirect_verdicts(log: VerdictLog | None) -> AbstractContextManager[None]:
    """Log verdicts there inside of the `with` block."""
    return _setting(_log, log)


def use_verifier(name: Verifier) -> AbstractContextManager[None]:
    """Score by this verifier inside of the `with` block."""
    return _setting(_verifier, name)


def use_think_end(text: str) -> AbstractContextManager[None]:
    """Read answers behind this text inside of the `with` block."""
    return _setting(_think_end, text)


@contextmanager
def _setting(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)

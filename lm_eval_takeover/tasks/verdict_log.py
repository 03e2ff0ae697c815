"""Who keeps the verdicts that this process gives. Light: tasks import it, whatever model they score."""

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Protocol

Verdict = tuple[str, bytes, str | None, str]  # digest of the document, digest of the response, answer, outcome


class KeepsVerdicts(Protocol):
    """Who is told what answers were worth."""

    def judge(self, verdicts: Iterable[Verdict]) -> None: ...


_keeper: ContextVar[KeepsVerdicts | None] = ContextVar("keeper of verdicts", default=None)


def keeper() -> KeepsVerdicts | None:
    """Who keeps the verdicts on the texts that were generated last; None if nobody does."""
    return _keeper.get()


def keep_with(keeper: KeepsVerdicts | None) -> None:
    """Verdicts go to this one from here on."""
    _keeper.set(keeper)


@contextlib.contextmanager
def kept_with(keeper: KeepsVerdicts) -> Iterator[None]:
    """The same for a while."""
    token = _keeper.set(keeper)
    try:
        yield
    finally:
        _keeper.reset(token)

"""Who keeps the verdicts that this process gives. Light: tasks import it, whatever model they score."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

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


def digest_of(document: Any) -> str:
    """32 hexadecimal digits that stand for a document of a task, or for any other value that JSON can hold."""
    text = json.dumps(document, sort_keys=True, default=str, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_of_text(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()

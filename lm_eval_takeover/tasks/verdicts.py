"""Which verifier scores the tasks of this process, and where its verdicts are logged. Light: task files import it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, Protocol, Self
from unicodedata import unidata_version

from lm_eval_takeover.answers.samples import Verifier
from lm_eval_takeover.storage.digests import digest_of


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


_selected: ContextVar[Mapping[str, Sequence[int]] | None] = ContextVar("documents of --samples, by task", default=None)
set_selected, reset_selected = _selected.set, _selected.reset


def find_doc_id(task: str | None, number: int | None) -> int:
    """lm-eval's doc_id of a document, whose `number` counts those that were selected."""
    selected = (_selected.get() or {}).get(task or "")
    return selected[number or 0] if selected else number or 0


@cache
def identify_scorer(verifier: Verifier) -> str:
    """The digest of all that judges: the verifier's name, the code of `answers` and `tasks`, and what that code stands on."""
    tasks = Path(__file__).parent
    files = sorted(file for folder in (tasks, tasks.with_name("answers")) for file in folder.glob("*.py"))
    sources = [[file.name, file.read_text(encoding="utf-8")] for file in files]
    versions = [metadata.version(name) for name in ("math-verify", "sympy", "regex")]
    return digest_of([verifier, versions, unidata_version, sources])


@contextmanager
def scoring_by(verifier: Verifier, think_end: str) -> Iterator[None]:
    """Inside of the `with` block score by this verifier, read answers behind this text, and log no verdicts."""
    verifiers, ends, logs = _verifier.set(verifier), _think_end.set(think_end), _log.set(None)
    try:
        yield
    finally:
        _verifier.reset(verifiers)
        _think_end.reset(ends)
        _log.reset(logs)

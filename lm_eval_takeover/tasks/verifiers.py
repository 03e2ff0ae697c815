"""Which verifier scores the tasks of this process: our own, unless `rescore --verifier` asks for math_verify."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from lm_eval_takeover.answers.samples import Verifier

_verifier: ContextVar[Verifier] = ContextVar("verifier", default="takeover")


def get_verifier() -> Verifier:
    """The verifier of the tasks that are made and scored now."""
    return _verifier.get()


@contextlib.contextmanager
def use_verifier(name: Verifier) -> Iterator[None]:
    """Score by this verifier inside of the `with` block."""
    token = _verifier.set(name)
    try:
        yield
    finally:
        _verifier.reset(token)

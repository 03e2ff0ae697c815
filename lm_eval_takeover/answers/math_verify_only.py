"""The verdicts of math_verify alone, to put a number beside one that used it.

Its `ExprExtractionConfig` hands what it finds in a response to `eval`. Run this in a worker only (`judging`).
"""

from functools import lru_cache
from typing import Any

from lm_eval_takeover.answers.verification import Verdict


@lru_cache(maxsize=256)
def _parse(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    return list(parse(text, [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=None))


def read_stock(response: str) -> str | None:
    """What math_verify takes for the answer of a response."""
    parsed = _parse(response)
    return str(parsed[-1]) if parsed else None


def verify_stock(gold: str, response: str) -> Verdict:
    """Whether math_verify finds the gold answer in a response."""
    from math_verify import verify

    parsed = _parse(f"${gold.strip('$')}$")
    if not parsed:
        return Verdict(False, "unparsed")
    return Verdict(bool(verify(parsed, _parse(response), timeout_seconds=None)))

"""What is said of one sample, whoever wrote or judged it: its text, its verdict, its document; and Pass@k of several."""

import math
from collections import Counter
from typing import Any, NamedTuple, Self


class Response(str):
    """The text of a sample, on its way through lm-eval to the judge of a task."""

    __slots__ = ("context", "truncated")
    truncated: bool  # its token limit ended it
    context: Any  # the `RunContext` of the model that wrote it; None of texts by others

    def __new__(cls, text: str, truncated: bool = False, context: Any = None) -> Self:
        response = super().__new__(cls, text)
        response.truncated, response.context = truncated, context
        return response

    def __reduce__(self) -> tuple[type[Self], tuple[str, bool]]:
        """For another rank, which gathers what was judged; a context has open files."""
        return type(self), (str(self), self.truncated)


class Verdict(NamedTuple):
    """The verdict on one response to one document; `doc` and `response` are digests."""

    doc: str
    response: bytes
    answer: str | None
    outcome: str


def name_document(digest: str, copies: Counter[str]) -> str:
    """The digest of a document, and which of several equal ones it is. `copies` counts those before it in its task."""
    copies[digest] += 1
    return digest if copies[digest] == 1 else f"{copies[digest]}-{digest}"


def list_ks(samples: int) -> list[int]:
    """The `k` of pass@k for this number of samples: 1, 2, 4, … and the number itself."""
    return sorted({*(2**power for power in range(samples.bit_length())), samples})


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The unbiased estimator `1 - C(n - c, k) / C(n, k)` for `c` correct ones of `n` samples."""
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {correct} correct among {n} samples is not defined")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)

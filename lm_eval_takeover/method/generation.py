"""One finished sample."""

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from lm_eval_takeover.method.request import Request

OBSERVED = ("base_entropy", "host_logprob", "donor_logprob", "donor_rank", "host_token")  # of traces, by `observe`

CountTokens = Callable[[int, int | None], None]  # gets tokens as they are emitted, and how many are takeovers, if that is known


@dataclass(slots=True)
class Generation:
    """One finished sample. All three lists have one entry per emitted token, the end token included.

    `scores` in nats, NaN under a policy that asks for none. Passes are forward passes of this row, prefill apart. `observed`
    holds, where a trace is wanted, the numbers of `OBSERVED` of one token after the other. Tokens that the request has begun with
    are in the lists, but not in `observed`.
    """

    tokens: list[int] = field(default_factory=list)
    taken_over: list[bool] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    base_passes: int = 0
    guide_passes: int = 0
    donor_answer: int = 0  # tokens of the donor's own answer, where a policy needs its length
    thought_cut: bool = False  # whether a thinking budget has ended its thinking
    observed: "array[float] | None" = None

    @classmethod
    def begin(cls, request: Request, traced: bool) -> Self:
        """Before the first token is drawn."""
        count = len(request.begun)
        unknown = [math.nan] * (count - len(request.begun_scores))
        scores = [*unknown, *request.begun_scores]
        return cls(list(request.begun), [False] * count, scores, observed=array("f") if traced else None)

    def count_passes(self, role: str, passes: int) -> None:
        """Add passes of this model; the sum is never below 0."""
        setattr(self, f"{role}_passes", max(getattr(self, f"{role}_passes") + passes, 0))

    @property
    def takeovers(self) -> int:
        return sum(self.taken_over)

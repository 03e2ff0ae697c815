"""What was emitted and what it cost, over a run and per task."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.runs.journal import Sample


@dataclass(slots=True)
class Tally:
    """Counts of tokens and of passes; passes are forward passes of one row, prefill apart."""

    tokens: int = 0
    takeovers: int = 0
    base_passes: int = 0
    guide_passes: int = 0

    def add(self, more: Self | Sample) -> None:
        self.tokens += more.tokens
        self.takeovers += more.takeovers
        self.base_passes += more.base_passes
        self.guide_passes += more.guide_passes

    @property
    def realized_rate(self) -> float:
        """`gamma`: the share of emitted tokens that the donor wrote."""
        return self.takeovers / self.tokens if self.tokens else 0.0


def summarize_tallies(tallies: Mapping[str, Tally], policy: Policy) -> dict[str, Any]:
    """The counts over the whole run, and for each task under `per_task`, in the order of their names."""
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    nothing_emitted = float(policy.host is None)  # the guide alone has a rate of 1 whatever it did

    def report(tally: Tally) -> dict[str, Any]:
        return {**asdict(tally), "realized_rate": tally.realized_rate if tally.tokens else nothing_emitted}

    return {**report(total), "per_task": {task: report(tallies[task]) for task in sorted(tallies)}}

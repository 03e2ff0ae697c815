"""Counts of tokens, passes and samples, over a run and per task."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from lm_eval_takeover.runs.journal import Sample


@dataclass(slots=True)
class Tally:
    """Counts of tokens, passes and samples; passes are forward passes of one row, prefill apart."""

    tokens: int = 0
    takeovers: int = 0
    changed: int | None = 0  # None if one sample's is not known
    asked: int = 0
    base_passes: int = 0
    guide_passes: int = 0
    samples: int = 0
    truncated: int = 0  # samples that their token limit ended

    def add(self, more: Self | Sample) -> None:
        for name in ("tokens", "takeovers", "asked", "base_passes", "guide_passes", "truncated"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.changed = None if self.changed is None or more.changed is None else self.changed + more.changed
        self.samples += more.samples if isinstance(more, Tally) else 1

    @property
    def realized_rate(self) -> float:
        """`gamma`: the share of emitted tokens that the donor wrote."""
        return self.takeovers / self.tokens if self.tokens else 0.0


def summarize_tallies(tallies: Mapping[str, Tally], rate_of_nothing: float = 0.0) -> dict[str, Any]:
    """The counts of the whole run, and of each task under `per_task`; `truncated` as a share."""
    total = Tally()
    for tally in tallies.values():
        total.add(tally)

    def report(tally: Tally) -> dict[str, Any]:
        rate = tally.realized_rate if tally.tokens else rate_of_nothing
        cut = tally.truncated / tally.samples if tally.samples else 0.0
        return {**asdict(tally), "realized_rate": rate, "truncated": cut}

    return {**report(total), "per_task": {task: report(tallies[task]) for task in sorted(tallies)}}

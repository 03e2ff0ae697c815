"""Counts of tokens, passes and samples, over a run and per task."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from lm_eval_takeover.runs.journal import Sample

COUNTS = ("tokens", "takeovers", "changed", "asked", "base_passes", "guide_passes")


@dataclass(slots=True)
class Tally:
    """Counts of tokens, passes and samples; passes are forward passes of one row, prefill apart.

    `score_sum` in nats and `spikes` are those of `Sample`. `of_truncated` counts the samples that their token limit ended.
    """

    tokens: int = 0
    takeovers: int = 0
    changed: int | None = 0  # None if one sample's is not known
    asked: int = 0
    base_passes: int = 0
    guide_passes: int = 0
    samples: int = 0
    score_sum: float | None = 0.0
    spikes: int | None = 0
    of_truncated: "Tally | None" = None

    def add(self, more: Self | Sample) -> None:
        self._count(more)
        cut = more.of_truncated if isinstance(more, Tally) else more if more.truncated else None
        if cut is not None:
            self.of_truncated = self.of_truncated or Tally()
            self.of_truncated._count(cut)

    def _count(self, more: "Tally | Sample") -> None:
        for name in (*COUNTS, "score_sum", "spikes"):
            counts = getattr(self, name), getattr(more, name)
            setattr(self, name, None if None in counts else sum(counts))
        self.samples += more.samples if isinstance(more, Tally) else 1

    @property
    def realized_rate(self) -> float:
        """`gamma`: the share of emitted tokens that the donor wrote."""
        return self.takeovers / self.tokens if self.tokens else 0.0

    @property
    def truncated(self) -> float:
        """The share of samples that their token limit ended."""
        return self.of_truncated.samples / self.samples if self.of_truncated else 0.0

    def describe_scores(self) -> dict[str, float | None]:
        """The mean score in nats and the share of spikes, which explain a rate; None where not known."""

        def average(total: float | None) -> float | None:
            return round(total / self.tokens, 5) if self.tokens and total is not None else None

        return {"mean_score": average(self.score_sum), "spike_share": average(self.spikes)}


def summarize_tallies(tallies: Mapping[str, Tally], rate_of_nothing: float = 0.0) -> dict[str, Any]:
    """The counts of the whole run, and of each task under `per_task`; of truncated samples the share, and their scores."""
    total = Tally()
    for tally in tallies.values():
        total.add(tally)

    def report(tally: Tally) -> dict[str, Any]:
        counts = {name: getattr(tally, name) for name in (*COUNTS, "samples", "truncated")}
        rate = tally.realized_rate if tally.tokens else rate_of_nothing
        part = tally.of_truncated
        cut = part and {"tokens": part.tokens, "realized_rate": part.realized_rate, **part.describe_scores()}
        return {**counts, "realized_rate": rate, **tally.describe_scores(), "of_truncated": cut}

    return {**report(total), "per_task": {task: report(tallies[task]) for task in sorted(tallies)}}

"""Counts of tokens, passes and samples, over a run and per task."""

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval_takeover.runs.journal import Sample

COUNTS = ("tokens", "takeovers", "changed", "asked", "base_passes", "guide_passes")


def summarize_samples(by_task: Mapping[str, Sequence[Sample]], rate_of_nothing: float = 0.0) -> dict[str, Any]:
    """The counts of the whole run, and of each task under `per_task`; of truncated samples the share, and their scores.

    A sum is None if one sample's count is not known.
    """

    def report(samples: Sequence[Sample]) -> dict[str, Any]:
        cut = [sample for sample in samples if sample.truncated]
        sums, of_cut = _add_up(samples), _add_up(cut)
        counts = {name: sums[name] for name in COUNTS}
        counts |= {"samples": len(samples), "truncated": len(cut) / len(samples) if samples else 0.0}
        described = {"tokens": of_cut["tokens"], **_describe_rates(of_cut, 0.0)} if cut else None
        return {**counts, **_describe_rates(sums, rate_of_nothing), "of_truncated": described}

    whole = [sample for samples in by_task.values() for sample in samples]
    return {**report(whole), "per_task": {task: report(by_task[task]) for task in sorted(by_task)}}


def _add_up(samples: Sequence[Sample]) -> dict[str, Any]:
    columns = {name: [getattr(sample, name) for sample in samples] for name in (*COUNTS, "score_sum", "spikes")}
    return {name: None if None in values else sum(values) for name, values in columns.items()}


def _describe_rates(sums: Mapping[str, Any], rate_of_nothing: float) -> dict[str, float | None]:
    """`gamma`, the share of tokens that the donor wrote; and what explains it: the mean score in nats, the share of spikes."""
    tokens, scores, spikes = (sums[name] for name in ("tokens", "score_sum", "spikes"))
    return {
        "realized_rate": sums["takeovers"] / tokens if tokens else rate_of_nothing,
        "mean_score": round(scores / tokens, 5) if tokens and scores is not None else None,
        "spike_share": round(spikes / tokens, 5) if tokens and spikes is not None else None,
    }

"""The analyses by name: their columns, and what each of them is made of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from lm_eval_takeover.analysis.choices import (
    ENTROPIES,
    SEEN,
    measure_choices,
    measure_entropies,
    measure_near,
    tabulate_choices,
    tabulate_entropies,
    tabulate_near,
)
from lm_eval_takeover.analysis.concentration import (
    SHARES,
    measure_concentration,
    measure_lorenz,
    tabulate_concentration,
    tabulate_lorenz,
)
from lm_eval_takeover.analysis.failure import BESIDE, measure_failure, tabulate_failure
from lm_eval_takeover.analysis.places import measure_overlap, measure_position, tabulate_overlap, tabulate_position
from lm_eval_takeover.analysis.planning import measure_peaks, tabulate_planning
from lm_eval_takeover.analysis.tokens import SampleTokens
from lm_eval_takeover.runs.run_reader import Name

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "concentration": (
        *("task", "score", "samples", "skipped", "gini", "low", "high"),
        *(f"top{percent}" for percent in SHARES),
    ),
    "lorenz": ("task", "score", "share_of_tokens", "share_of_score"),
    "position": ("task", "score", "bin", "left", "right", "density", "tokens"),
    "overlap": ("task", "score", "top_percent", "iou", "chance"),
    "planning": (
        *("task", "run", "set", "score", "class", "in_set", "of_set", "in_base", "of_base"),
        *("share_set", "share_base", "enrichment", "low", "high"),
    ),
    "failure": (
        *("task", "signal", "samples", "auroc", "low", "high", "accuracy", "majority"),
        *("within", "within_low", "within_high"),
        *(f"minus_{other}{end}" for other in BESIDE for end in ("", "_low", "_high")),
    ),
    "near": ("task", "score", "threshold", "tokens", "share", "low", "high"),
    "choices": ("task", "score", "set", "measure", "tokens", "value", "low", "high"),
    "entropy_by_js": (
        *("task", "bin", "left", "right", "tokens"),
        *(f"{name}{end}" for name in ENTROPIES for end in ("", "_low", "_high")),
    ),
    "budget": (
        *("task", "run", "policy", "score", "nominal", "realized_rate", "acc", "acc_low", "acc_high"),
        *("pass8", "pass8_low", "pass8_high", "k"),
    ),
    "rates": ("task", "run", "doc_id", "realized_rate", "tokens"),
    "flips": ("task", "run", "problems", "rescued", "harmed", "p_value", "null_rescued", "null_harmed", "null"),
    "cross": (
        *("task", "run", "direction", "threshold", "near_share", "replaced", "replaced_share"),
        *("acc", "acc_host", "acc_donor", "changed", "changed_share"),
    ),
    "ranks": ("task", "run", "rank", "takeovers", "share"),
}


@dataclass(frozen=True, slots=True)
class SampleAnalysis:
    """An analysis of scored rollouts: what is measured on one sample by one score (None: left out), and the table of it.

    `columns` are those of a scores file that it reads beside the scores.
    """

    measure: Callable[[SampleTokens, str], dict[str, Any] | None]
    tabulate: Callable[[pl.DataFrame], pl.DataFrame]
    columns: tuple[str, ...] = ()


SCORED: Mapping[str, SampleAnalysis] = {
    "concentration": SampleAnalysis(measure_concentration, tabulate_concentration),
    "lorenz": SampleAnalysis(measure_lorenz, tabulate_lorenz),
    "position": SampleAnalysis(measure_position, tabulate_position),
    "overlap": SampleAnalysis(measure_overlap, tabulate_overlap),
    "planning": SampleAnalysis(measure_peaks, tabulate_planning),
    "failure": SampleAnalysis(measure_failure, tabulate_failure),
    "near": SampleAnalysis(measure_near, tabulate_near),
    "choices": SampleAnalysis(measure_choices, tabulate_choices, SEEN),
    "entropy_by_js": SampleAnalysis(measure_entropies, tabulate_entropies, ENTROPIES),
}

Measured = dict[str, list[dict[str, Any]]]  # rows by analysis


def measure_samples(
    samples: Iterable[SampleTokens], names: Sequence[str], scores: Sequence[str], places: Mapping[Name, Sequence[Name]]
) -> dict[str, pl.DataFrame]:
    """One row per place of a sample and score, by analysis: `task, doc_id, sample, score` and what is measured.

    `places` are the tasks' names of each stored sample: where two tasks share it, both have it; others are left out.
    """
    rows: Measured = {name: [] for name in names}
    for sample in samples:
        for name in names:
            for score in scores:
                found = SCORED[name].measure(sample, score) if sample.name in places else None
                if found is None:
                    continue
                for task, doc_id, number in places[sample.name]:
                    rows[name].append({"task": task, "doc_id": doc_id, "sample": number, "score": score, **found})
    return {name: make_frame(found).sort("task", maintain_order=True) for name, found in rows.items() if found}


def make_frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as a table; arrays of numbers become a column of arrays."""
    columns: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        columns[name] = np.stack(values) if isinstance(first, np.ndarray) else values
    return pl.DataFrame(columns)


def analyse(name: str, samples: Iterable[SampleTokens], scores: Sequence[str]) -> pl.DataFrame:
    """One analysis of scored samples: from tokens to its table."""
    kept = list(samples)
    measured = measure_samples(kept, [name], scores, {sample.name: [sample.name] for sample in kept})
    return SCORED[name].tabulate(measured[name])

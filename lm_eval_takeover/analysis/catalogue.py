"""The analyses by name: their columns, and what each of them is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
    measure_overlap,
    measure_position,
    tabulate_concentration,
    tabulate_lorenz,
    tabulate_overlap,
    tabulate_position,
)
from lm_eval_takeover.analysis.failure import BESIDE, measure_failure, tabulate_failure
from lm_eval_takeover.analysis.planning import measure_peaks, tabulate_planning
from lm_eval_takeover.analysis.tokens import SampleTokens

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "concentration": (
        *("task", "score", "samples", "skipped", "gini", "low", "high"),
        *(f"top{percent}" for percent in SHARES),
    ),
    "lorenz": ("task", "score", "share_of_tokens", "share_of_score", "low", "high"),
    "position": ("task", "score", "bin", "left", "right", "density", "low", "high", "tokens"),
    "overlap": ("task", "score", "top_percent", "iou", "low", "high", "chance"),
    "planning": (
        *("task", "run", "set", "score", "class", "in_set", "of_set", "in_base", "of_base"),
        *("share_set", "share_base", "enrichment", "low", "high"),
    ),
    "failure": (
        *("task", "signal", "samples", "auroc", "low", "high", "accuracy", "majority"),
        *("within", "within_low", "within_high"),
        *(f"minus_{other}{end}" for other in BESIDE for end in ("", "_low", "_high")),
    ),
    "signals": ("task", "doc_id", "sample", "score", "value", "correct"),
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

"""The analyses by name: their columns, and what each of them is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from lm_eval_takeover.lab.analysis import choices, concentration, failure, guides, planning
from lm_eval_takeover.lab.analysis.tokens import SampleTokens


def _name(words: str, *more: str) -> tuple[str, ...]:
    return *words.split(), *more


_GUIDES = _name("task guide step versus score measure value low high tokens")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "concentration": _name("task score samples skipped gini low high", *(f"top{percent}" for percent in concentration.SHARES)),
    "lorenz": _name("task score share_of_tokens share_of_score low high"),
    "position": _name("task score bin left right density low high tokens"),
    "overlap": _name("task score top_percent iou low high chance"),
    "planning": _name("task run set score class in_set of_set in_base of_base share_set share_base enrichment low high"),
    "failure": _name(
        "task signal samples auroc low high accuracy majority within within_low within_high",
        *(f"minus_{other}{end}" for other in failure.BESIDE for end in ("", "_low", "_high")),
    ),
    "signals": _name("task doc_id sample score value correct"),
    "near": _name("task score threshold tokens share low high"),
    "choices": _name("task score set measure tokens value low high"),
    "contexts": _name("word score set occurrences task doc_id sample position value before token after"),
    **dict.fromkeys(("guides", "checkpoints"), _GUIDES),
    "entropy_by_js": _name(
        "task bin left right tokens", *(f"{name}{end}" for name in choices.ENTROPIES for end in ("", "_low", "_high"))
    ),
    "budget": _name("task run policy score nominal realized_rate acc acc_low acc_high pass8 pass8_low pass8_high k"),
    "rates": _name("task run doc_id realized_rate tokens"),
    "flips": _name("task run problems rescued harmed p_value null_rescued null_harmed null"),
    "cross": _name(
        "task run direction threshold near_share replaced replaced_share acc acc_host acc_donor changed changed_share"
    ),
    "examples": _name("task run rule doc_id sample position score problem text"),
    "ranks": _name("task run rank takeovers share"),
}


@dataclass(frozen=True, slots=True)
class SampleAnalysis:
    """What is measured on one sample by one score (None: left out), the table of it, and further `columns` of a scores file."""

    measure: Callable[[SampleTokens, str], dict[str, Any] | None]
    tabulate: Callable[[pl.DataFrame], pl.DataFrame]
    columns: tuple[str, ...] = ()


SCORED: Mapping[str, SampleAnalysis] = {
    "concentration": SampleAnalysis(concentration.measure_concentration, concentration.tabulate_concentration),
    "lorenz": SampleAnalysis(concentration.measure_lorenz, concentration.tabulate_lorenz),
    "position": SampleAnalysis(concentration.measure_position, concentration.tabulate_position),
    "overlap": SampleAnalysis(concentration.measure_overlap, concentration.tabulate_overlap),
    "planning": SampleAnalysis(planning.measure_peaks, planning.tabulate_planning),
    "failure": SampleAnalysis(failure.measure_failure, failure.tabulate_failure),
    "near": SampleAnalysis(choices.measure_near, choices.tabulate_near),
    "choices": SampleAnalysis(choices.measure_choices, choices.tabulate_choices, choices.SEEN),
    "guides": SampleAnalysis(guides.measure_guide, guides.tabulate_guides, choices.SEEN),
    "entropy_by_js": SampleAnalysis(choices.measure_entropies, choices.tabulate_entropies, choices.ENTROPIES),
}

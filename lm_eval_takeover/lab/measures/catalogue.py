"""The analyses by name: their columns, and what each of them is made of.

They are measured on the scored samples of a run, one of its files after the other: on all cores where there is much.
"""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import polars as pl

from lm_eval_takeover.answers.judging import count_cores
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.lab.measures import choices, concentration, failure, planning
from lm_eval_takeover.lab.measures.planning import Vocabulary, classify_text
from lm_eval_takeover.lab.measures.pooling import make_frame
from lm_eval_takeover.lab.measures.tokens import SampleTokens, read_scored_samples
from lm_eval_takeover.runs.parquet import NAME_COLUMNS, Name

MANY = 10**7  # tokens from which on worker processes are worth their start of some seconds


def _name(words: str, *more: str) -> tuple[str, ...]:
    return *words.split(), *more


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
    "guides": _name("task guide step versus score measure value low high tokens"),
    "entropy_by_js": _name(
        "task bin left right tokens", *(f"{name}{end}" for name in choices.ENTROPIES for end in ("", "_low", "_high"))
    ),
    "budget": _name("task run policy score nominal realized_rate acc acc_low acc_high pass8 pass8_low pass8_high k"),
    "rates": _name("task run doc_id realized_rate tokens"),
    "flips": _name("task run problems rescued harmed p_value null_rescued"),
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
    "guides": SampleAnalysis(choices.measure_guide, choices.tabulate_guides, choices.SEEN),
    "entropy_by_js": SampleAnalysis(choices.measure_entropies, choices.tabulate_entropies, choices.ENTROPIES),
}


@dataclass(frozen=True)
class Measuring:
    """Which analyses, by which scores. `codes`, where planning is among them, are those of the vocabulary.

    `places` are the tasks' names of each stored sample: where two tasks share it, both have it; others are left out.
    """

    names: Sequence[str]
    scores: Sequence[str]
    places: Mapping[Name, Sequence[Name]]
    codes: Vocabulary | None = None

    def measure(self, path: Path) -> dict[str, pl.DataFrame]:
        """A table by analysis, of the samples of this file."""
        columns = [column for name in self.names for column in SCORED[name].columns]
        return self.measure_samples(read_scored_samples([path], self.scores, columns))

    def measure_samples(self, samples: Iterable[SampleTokens]) -> dict[str, pl.DataFrame]:
        """By analysis a row per place of a sample and score: `task, doc_id, sample, score` and what is measured."""
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in self.names}
        for sample in samples:
            places = self.places.get(sample.name, ())
            if self.codes is not None:
                codes = classify_text(self.codes, sample.columns["token_id"])
                sample = SampleTokens(sample.name, {**sample.columns, "codes": codes})
            for name, score in product(self.names if places else (), self.scores):
                if (measured := SCORED[name].measure(sample, score)) is not None:
                    named = (dict(zip(NAME_COLUMNS, place, strict=True)) for place in places)
                    rows[name] += [{**place, "score": score, **measured} for place in named]
        return {name: make_frame(of).sort("task", maintain_order=True) for name, of in rows.items() if of}


def measure_files(measuring: Measuring, paths: Sequence[Path], tokens: int) -> Iterator[dict[str, pl.DataFrame]]:
    """`Measuring.measure` of each file, in their order. Raises RunDirError where a worker process was killed."""
    if tokens < MANY:
        yield from map(measuring.measure, paths)
        return
    workers = min(count_cores(), len(paths))
    context = get_context("forkserver")  # not `fork`: pyarrow and polars have threads by then
    context.set_forkserver_preload([__name__])  # imported once for all workers
    # Ctrl-C is for the process that waits for these.
    pool = ProcessPoolExecutor(workers, context, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        yield from pool.map(measuring.measure, paths, chunksize=-(-len(paths) // (4 * workers)))
    except BrokenProcessPool as error:
        raise RunDirError("a worker process of the analysis was killed; was there enough memory?") from error
    finally:
        pool.shutdown(cancel_futures=True)

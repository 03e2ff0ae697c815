"""What analyses measure on the scored samples of a run, one of its files after the other: on all cores where there is much."""

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from lm_eval_takeover.lab.analysis.catalogue import SCORED
from lm_eval_takeover.lab.analysis.planning import Vocabulary, classify_text
from lm_eval_takeover.lab.analysis.pooling import make_frame
from lm_eval_takeover.lab.analysis.tokens import SampleTokens, read_scored_samples
from lm_eval_takeover.runs.parquet import NAME_COLUMNS, Name

MANY = 10**7  # tokens from which on worker processes are worth their start of some seconds


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

"""What analyses measure on the scored samples of a run, a part of its files after the other: on all cores where there is much."""

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import product
from multiprocessing import forkserver, get_all_start_methods, get_context
from typing import Any

import polars as pl

from lm_eval_takeover.answers.judging import count_cores
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.lab.analysis.catalogue import SCORED
from lm_eval_takeover.lab.analysis.planning import Vocabulary, classify_text
from lm_eval_takeover.lab.analysis.pooling import make_frame
from lm_eval_takeover.lab.analysis.tokens import SampleTokens, ScoreFile, read_scored_samples
from lm_eval_takeover.runs.parquet import NAME_COLUMNS, Name

_ROWS = 10**7  # from so many on, worker processes are worth their start of some seconds
# Not `fork`: pyarrow and polars have threads by then. `spawn`, where there is nothing else, imports once for each worker.
_METHOD = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"


@dataclass(frozen=True)
class Measuring:
    """Which analyses, by which scores. `codes`, where planning is among them, are those of the vocabulary.

    `places` are the tasks' names of each stored sample: where two tasks share it, both have it; others are left out.
    """

    names: Sequence[str]
    scores: Sequence[str]
    places: Mapping[Name, Sequence[Name]]
    codes: Vocabulary | None = None

    def measure(self, part: ScoreFile) -> dict[str, pl.DataFrame]:
        """A table by analysis, of the samples that begin in this part."""
        columns = [column for name in self.names for column in SCORED[name].columns]
        return self.measure_samples(read_scored_samples([part], self.scores, columns))

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


def count_workers(parts: Sequence[ScoreFile]) -> int:
    """How many processes measure these parts; 1 is this one."""
    return min(count_cores(), len(parts)) if sum(part.rows for part in parts) >= _ROWS else 1


def warm_up(parts: Sequence[ScoreFile]) -> None:
    """Where worker processes will measure these parts, begin to import what they need, beside what this one has still to read."""
    if count_workers(parts) > 1 and _METHOD == "forkserver":
        get_context(_METHOD).set_forkserver_preload([__name__])
        forkserver.ensure_running()


def measure_parts(measuring: Measuring, parts: Sequence[ScoreFile], workers: int) -> Iterator[dict[str, pl.DataFrame]]:
    """`Measuring.measure` of each part, in their order. Raises RunDirError where a worker process was killed."""
    if workers <= 1:
        yield from map(measuring.measure, parts)
        return
    pool = ProcessPoolExecutor(workers, get_context(_METHOD), _begin_worker, (measuring,))
    try:
        yield from pool.map(_measure, parts)
    except BrokenProcessPool as error:
        raise RunDirError("a worker process of the analysis was killed; was there enough memory?") from error
    finally:
        pool.shutdown(cancel_futures=True)


_of_worker: Measuring | None = None


def _begin_worker(measuring: Measuring) -> None:
    """Ctrl-C is for the process that waits for this one."""
    global _of_worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _of_worker = measuring


def _measure(part: ScoreFile) -> dict[str, pl.DataFrame]:
    assert _of_worker is not None
    return _of_worker.measure(part)

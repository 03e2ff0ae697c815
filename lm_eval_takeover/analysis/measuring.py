"""What analyses measure on the scored samples of a run, a part of its files after the other: on all cores where there is much."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import forkserver, get_all_start_methods, get_context

import polars as pl

from lm_eval_takeover.analysis.catalogue import SCORED, measure_samples
from lm_eval_takeover.analysis.planning import Codes, classify_text
from lm_eval_takeover.analysis.tokens import Part, SampleTokens, read_scored_samples
from lm_eval_takeover.answers.judging import count_cores
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.run_reader import Name

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
    codes: Codes | None = None

    def measure(self, part: Part) -> dict[str, pl.DataFrame]:
        """A table by analysis, of the samples that begin in this part."""
        columns = [column for name in self.names for column in SCORED[name].columns]
        samples = map(self._add_codes, read_scored_samples([part], self.scores, columns))
        return measure_samples(samples, self.names, self.scores, self.places)

    def _add_codes(self, sample: SampleTokens) -> SampleTokens:
        if self.codes is None:
            return sample
        return SampleTokens(
            sample.name, {**sample.columns, "codes": classify_text(self.codes, sample.columns["token_id"])}
        )


def count_workers(parts: Sequence[Part]) -> int:
    """How many processes measure these parts; 1 is this one."""
    return min(count_cores(), len(parts)) if sum(part.rows for part in parts) >= _ROWS else 1


def warm_up(parts: Sequence[Part]) -> None:
    """Where worker processes will measure these parts, begin to import what they need, beside what this one has still to read."""
    if count_workers(parts) > 1 and _METHOD == "forkserver":
        get_context(_METHOD).set_forkserver_preload([__name__])
        forkserver.ensure_running()


def measure_parts(measuring: Measuring, parts: Sequence[Part]) -> Iterator[dict[str, pl.DataFrame]]:
    """`Measuring.measure` of each part, in their order. Raises RunDirError where a worker process was killed."""
    workers = count_workers(parts)
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


def _measure(part: Part) -> dict[str, pl.DataFrame]:
    assert _of_worker is not None
    return _of_worker.measure(part)

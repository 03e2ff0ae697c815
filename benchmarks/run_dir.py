"""What a run_dir costs: time, bytes, memory, and how long a finished run takes to open.

    python benchmarks/run_dir.py [--problems 40] [--rounds 3] [--tokens 10000000]

One interleaved run (with, without, with, …) of the demo task's generation; the size of its traces; a run of 10^7 tokens, written,
opened and read; 10^7 tokens in flight with their traces, as the growth of this process's memory.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from lm_eval.api.instance import Instance

from lm_eval_takeover.decoding import emission
from lm_eval_takeover.demo import PROMPT, problems
from lm_eval_takeover.method.request import OBSERVED, Generation
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.runs import recorder
from lm_eval_takeover.runs.evidence import TraceHeader, pack_trace
from lm_eval_takeover.runs.journal import AskedSample, Sample
from lm_eval_takeover.runs.run_reader import read_run_folder
from lm_eval_takeover.runs.run_writer import RunWriter

SETTINGS = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 512, "until": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=10**7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for batch in options.batch:
            overhead(Path(folder), options.problems if batch > 1 else options.problems // 8, batch, options.rounds)
        storing(Path(folder) / "many", options.tokens)
    in_flight(options.tokens)


def overhead(folder: Path, count: int, batch: int, rounds: int) -> None:
    asked = [
        Instance("generate_until", row, (PROMPT.format(problem=row["problem"]), SETTINGS), 0, metadata=("demo", i, 8))
        for i, row in enumerate(problems()[:count])
        for _ in range(8)
    ]
    ratios, sizes, shares = [], [], []
    for round_ in range(rounds + 1):
        seconds = {}
        for name in ("with", "without"):
            where = folder / f"{batch}-{round_}"
            lm = GuidedTakeover(spike_ratio=0.045, batch_size=batch, run_dir=str(where) if name == "with" else None)
            lm.generate_until(asked[:8], disable_tqdm=True)  # what passes cost is learnt here
            started, before = time.perf_counter(), count_tokens(lm)
            with timed() as spent:
                lm.generate_until(asked[8:], disable_tqdm=True)
            if name == "with" and round_:
                shares.append(spent[0] / (time.perf_counter() - started))
            # Ratios are per token: both write the same.
            seconds[name] = (time.perf_counter() - started) / (count_tokens(lm) - before)
            if lm.run is not None:
                lm.run.close()
                files = list((where / "traces").iterdir())
                sizes.append(sum(file.stat().st_size for file in files) / count_tokens(lm))
        if round_:
            ratios.append(seconds["with"] / seconds["without"])
    print(
        f"demo pair, batch {batch}, {len(asked)} samples: with a run_dir {statistics.median(ratios):.3f} times the time without "
        f"({', '.join(f'{one:.3f}' for one in ratios)}); {statistics.median(shares):.1%} of it is work for journal and traces; "
        f"traces {sizes[-1]:.1f} bytes a token",
        flush=True,
    )


def count_tokens(lm: GuidedTakeover) -> int:
    return sum(sample.tokens for sample in lm.samples["demo"])


@contextlib.contextmanager
def timed() -> Iterator[list[float]]:
    """Seconds of work for journal and traces.

    Where a machine is so noisy that equal runs differ by 20 %, this tells what a run_dir costs.
    """
    spent = [0.0]
    parts = [
        (emission, "observe"),
        (recorder, "pack_trace"),
        (RunWriter, "add"),
        (RunWriter, "flush"),
    ]
    plain = [getattr(owner, name) for owner, name in parts]

    def wrapped(function: Any) -> Any:
        def timed_function(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[0] += time.perf_counter() - started

        return timed_function

    for (owner, name), function in zip(parts, plain, strict=True):
        setattr(owner, name, wrapped(function))
    try:
        yield spent
    finally:
        for (owner, name), function in zip(parts, plain, strict=True):
            setattr(owner, name, function)


def storing(folder: Path, tokens: int) -> None:
    """A run of texts of 2,000 tokens: written, opened again, read."""
    header, keys = TraceHeader("s", ("base", "guide"), 10), [number.to_bytes(16, "big") for number in range(tokens // 2000)]
    generations, text = (
        [invent(np.random.default_rng(place), 2000) for place in range(len(keys))],
        "So the next one is 7. " * 300,
    )
    asked = [AskedSample("demo", "d", place, 0, place, "p", key) for place, key in enumerate(keys)]
    clocks = Clocks()
    run = RunWriter(folder)
    run.begin("s", {"takeover": {}, "arguments": {}, "settings": {}, "tasks": []}, asked)
    for place, key in enumerate(keys):
        counts = 2000, 9, 9, 2000, 2000, 99
        run.add(Sample(key, "demo", place, 0, f"{place} {text}", *counts, False, trace=pack_trace(generations[place], header)))
    run.find([])
    clocks.lap(f"{tokens:,} tokens in {len(keys):,} samples, as they come")
    run.close()
    clocks.lap("the parquet files at the end")
    for name in ("journal*", "traces/*"):
        print(f"    {name}: {sum(file.stat().st_size for file in folder.glob(name)) / tokens:.1f} bytes a token")
    clocks.lap("")
    again = RunWriter(folder)
    assert len(again.find(keys)) == len(keys)
    clocks.lap("the run is opened again, all of it checked and found")
    again.close()
    reader = read_run_folder(folder)
    clocks.lap("it is opened to be read")
    columns = ["token_id", "chosen_from", "score", "donor_rank", "host_token_id"]
    count = sum(len(found["score"]) for _, found in reader.read_traces(columns))
    assert count == len(keys) * 2000
    clocks.lap("all traces are read, five columns")
    list(reader.read_traces(["token_id", "chosen_from", "host_token_id"], reader.answered[-1:]))
    clocks.lap("one trace is read, as `show` does")


class Clocks:
    """Prints the time since the last lap: of this process on the processors, and on the wall."""

    def __init__(self) -> None:
        self._last = time.process_time(), time.perf_counter()

    def lap(self, label: str) -> None:
        now = time.process_time(), time.perf_counter()
        if label:
            print(f"{label}: {now[0] - self._last[0]:.2f} s of processor, {now[1] - self._last[1]:.2f} s", flush=True)
        self._last = now


def invent(numbers: np.random.Generator, count: int) -> Generation:
    """A trace as of a pair with 151,936 tokens: few are frequent, half of the positions are sure, 5 % taken over."""
    sure, taken = numbers.random(count) < 0.5, numbers.random(count) < 0.05
    entropy, host_logprob, donor_logprob, score = np.where(sure, 1e-3, 1.0) * numbers.exponential(0.4, (4, count))
    token, drawn = np.minimum(numbers.zipf(1.3, (2, count)), 151_935)
    host, rank = np.where(taken, drawn, token), np.where(taken, numbers.geometric(0.4, count), 1)
    observed = np.stack([entropy, -host_logprob, -donor_logprob, rank, host], axis=1).astype(np.float32)
    made = Generation(observed=array("f", observed.tobytes()))
    made.tokens, made.taken_over, made.scores = token.tolist(), taken.tolist(), score.tolist()
    return made


def traced(tokens: int) -> Generation:
    made = Generation(observed=array("f", [0.25]) * (len(OBSERVED) * tokens))
    made.tokens, made.taken_over = [1000 + i for i in range(tokens)], [i % 20 == 0 for i in range(tokens)]
    made.scores = [i / 7 for i in range(tokens)]
    return made


def in_flight(tokens: int) -> None:
    before = psutil.Process().memory_info().rss
    rows = [traced(16_384) for _ in range(tokens // 16_384)]
    held = psutil.Process().memory_info().rss - before
    print(f"{len(rows) * 16_384:,} tokens in flight with their traces: {held / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()

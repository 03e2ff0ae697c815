"""What a run_dir costs: time, bytes, memory, and how long a finished run takes to open.

    python benchmarks/run_dir.py [--problems 40] [--rounds 3] [--tokens 10000000] [--samples 21000]

One interleaved run (with, without, with, …) of the demo task's generation; the size of its traces; 10^7 tokens in flight with
their traces, as the growth of this process's memory; a journal of 21,000 finished samples of 2,000 tokens, opened and asked for
all of them.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from lm_eval.api.instance import Instance

from lm_eval_takeover.decoding import blockwise
from lm_eval_takeover.demo import PROMPT, problems
from lm_eval_takeover.method.generation import OBSERVED, Generation
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.runs import recorder
from lm_eval_takeover.runs.journal import Sample
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.runs.traces import TraceHeader, pack_trace, write_part

SETTINGS = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 512, "until": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=10**7)
    parser.add_argument("--samples", type=int, default=21_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for batch in options.batch:
            overhead(Path(folder), options.problems if batch > 1 else options.problems // 8, batch, options.rounds)
        opening(Path(folder) / "many", options.samples)
        noise(Path(folder))
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
            started, before = time.perf_counter(), lm.tally["demo"].tokens
            with timed() as spent:
                lm.generate_until(asked[8:], disable_tqdm=True)
            if name == "with" and round_:
                shares.append(spent[0] / (time.perf_counter() - started))
            # Ratios are per token: both write the same.
            seconds[name] = (time.perf_counter() - started) / (lm.tally["demo"].tokens - before)
            if lm.run is not None:
                lm.run.close()
                files = list((where / "traces").iterdir())
                sizes.append(sum(file.stat().st_size for file in files) / lm.tally["demo"].tokens)
        if round_:
            ratios.append(seconds["with"] / seconds["without"])
    print(
        f"demo pair, batch {batch}, {len(asked)} samples: with a run_dir {statistics.median(ratios):.3f} times the time without "
        f"({', '.join(f'{one:.3f}' for one in ratios)}); {statistics.median(shares):.1%} of it is work for journal and traces; "
        f"traces {sizes[-1]:.1f} bytes a token",
        flush=True,
    )


@contextlib.contextmanager
def timed() -> Iterator[list[float]]:
    """Seconds of work for journal and traces: what the engine waits for, and what the journal's thread computes beside it.

    Where a machine is so noisy that equal runs differ by 20 %, this tells what a run_dir costs.
    """
    spent = [0.0]
    parts = [
        (blockwise.Blocks, "_observed"),
        (recorder, "pack_trace"),
        (RunWriter, "add"),
        (RunWriter, "_write"),
        (RunWriter, "_flush"),
    ]
    plain = [getattr(owner, name) for owner, name in parts]

    def wrapped(function: Any, clock: Any) -> Any:
        def timed_function(*arguments: Any, **options: Any) -> Any:
            started = clock()
            try:
                return function(*arguments, **options)
            finally:
                spent[0] += clock() - started

        return timed_function

    for (owner, name), function in zip(parts, plain, strict=True):
        # On the journal's thread only what it computes: while it waits for the disk, the engine goes on.
        setattr(owner, name, wrapped(function, time.thread_time if name in ("_write", "_flush") else time.perf_counter))
    try:
        yield spent
    finally:
        for (owner, name), function in zip(parts, plain, strict=True):
            setattr(owner, name, function)


def opening(folder: Path, count: int) -> None:
    run = RunWriter(folder)
    text, tokens = "So the next one is 7. " * 300, 2000
    made = traced(tokens)
    blob = pack_trace(made, TraceHeader("s", ("base", "guide"), 10))
    keys = [number.to_bytes(16, "big") for number in range(count)]
    template = Sample(keys[0], "demo", 0, 0, text, tokens, 9, 9, tokens, tokens, 99, False, trace=blob)
    started = time.perf_counter()
    for number, key in enumerate(keys):
        run.add(replace(template, key=key, doc_id=number // 8, sample=number % 8))
    run.close()
    print(f"{count:,} samples of {tokens:,} tokens were journalled in {time.perf_counter() - started:.1f} s")
    started = time.perf_counter()
    again = RunWriter(folder)
    found = again.find(keys)
    print(
        f"a run of {count:,} finished samples opens, with all of them checked and found, in {time.perf_counter() - started:.2f} s"
    )
    assert len(found) == count
    again.close()


def traced(tokens: int) -> Generation:
    made = Generation(observed=array("f", [0.25]) * (len(OBSERVED) * tokens))
    made.tokens, made.taken_over = [1000 + i for i in range(tokens)], [i % 20 == 0 for i in range(tokens)]
    made.scores = [i / 7 for i in range(tokens)]
    return made


def noise(folder: Path) -> None:
    """The size of traces in which nothing repeats: what a pair of real models cannot exceed by much."""
    numbers, count = np.random.default_rng(0), 2**18
    made = Generation(observed=array("f", numbers.exponential(size=count * len(OBSERVED)).tolist()))
    made.tokens = numbers.integers(0, 151_936, count).tolist()
    made.taken_over, made.scores = (numbers.random(count) < 0.08).tolist(), numbers.exponential(size=count).tolist()
    packed = pack_trace(made, TraceHeader("s", ("base", "guide"), 10))
    sample = Sample(b"k", "demo", 0, 0, "", count, 0, 0, 0, 0, 0, False, trace=packed)
    write_part(folder / "noise.parquet", [sample], {})
    size = (folder / "noise.parquet").stat().st_size / count
    print(f"random numbers in every column, vocabulary 151,936: {size:.1f} bytes a token")


def in_flight(tokens: int) -> None:
    before = psutil.Process().memory_info().rss
    rows = [traced(16_384) for _ in range(tokens // 16_384)]
    held = psutil.Process().memory_info().rss - before
    print(f"{len(rows) * 16_384:,} tokens in flight with their traces: {held / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()

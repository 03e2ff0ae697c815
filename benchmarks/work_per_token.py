"""What an engine does for a token, as counts that no other load on the machine changes: beside an older commit, say.

    git worktree add ../older COMMIT
    python benchmarks/work_per_token.py [--beside ../older] [--batch 1 8 32] [--tokens 64]

Counts Python's instructions (opcodes) and torch's operations, nested ones included, on the demo pair at spike_ratio=0.045. Both
repeat exactly. The time of an operation is not in them: `blockwise.py` measures seconds.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.backends import open_backend
from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.demo import PROMPT, problems
from lm_eval_takeover.method.policies import BaseAlone
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.pair import load_pair
from lm_eval_takeover.pair.policy_choice import load_policy

ENGINES = ("blocks", "lockstep", "base")


def count_opcodes(run: Callable[[], Any]) -> int:
    """Run it. Returns the number of Python instructions."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)
    return count


def measure(batches: list[int], tokens: int) -> None:
    """Print engine, batch, opcodes and operations a token, a line each."""
    torch.set_num_threads(1)
    arguments = ModelArguments(spike_ratio=0.045)
    pair = load_pair(arguments)
    policy = load_policy(arguments, pair)[0]
    open_backend(arguments, pair, policy)  # loads the weights
    for batch in batches:
        texts = [PROMPT.format(problem=row["problem"]) for row in problems()[: -(-batch // 8)]]
        asked = [Request(tuple(pair.encode(text)), j, tokens, Sampling(0.6, 0.95)) for text in texts for j in range(8)][:batch]
        for engine in ENGINES:
            generate = lockstep.generate if engine == "lockstep" else blockwise.generate
            by = BaseAlone() if engine == "base" else policy

            def run(generate: Any = generate, by: Any = by, asked: Any = asked, batch: int = batch) -> int:
                return sum(len(made.tokens) for _, made in generate(pair, by, asked, batch_size=batch))

            written = run()  # the first run makes what is kept
            opcodes = count_opcodes(run)
            with profile(activities=[ProfilerActivity.CPU]) as profiled:
                run()
            print("counted", engine, batch, opcodes / written, len(profiled.events()) / written, flush=True)


def read(checkout: Path, batches: list[int], tokens: int) -> dict[tuple[str, int], tuple[float, float]]:
    """The counts of a checkout, by its own script, by engine and batch: opcodes and operations a token."""
    script = checkout / "benchmarks" / Path(__file__).name
    call = [sys.executable, str(script), "--count", "--batch", *map(str, batches), "--tokens", str(tokens)]
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"}
    printed = subprocess.run(call, env=environment, check=True, capture_output=True, text=True).stdout
    lines = [line.split()[1:] for line in printed.splitlines() if line.startswith("counted ")]
    return {(engine, int(batch)): (float(opcodes), float(operations)) for engine, batch, opcodes, operations in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        return measure(options.batch, options.tokens)
    here = Path(__file__).parent.parent
    now = read(here, options.batch, options.tokens)
    before = read(options.beside.resolve(), options.batch, options.tokens) if options.beside else now
    print("|engine|batch|opcodes a token|torch's operations a token|opcodes, before over now|operations, before over now|")
    print("|------|----:|--------------:|-------------------------:|-----------------------:|--------------------------:|")
    for (engine, batch), counts in now.items():
        ratios = [old / new for old, new in zip(before[engine, batch], counts, strict=True)]
        print(f"|{engine}|{batch}|{counts[0]:,.0f}|{counts[1]:,.1f}|{ratios[0]:.3f}|{ratios[1]:.3f}|")


if __name__ == "__main__":
    main()

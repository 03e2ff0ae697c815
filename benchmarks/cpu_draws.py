"""Draws on a CPU beside those of another revision, in turns: processor time of a draw, and whether the tokens are the same.

python benchmarks/cpu_draws.py REVISION [--vocab 151936]
"""

import argparse
import subprocess
import time
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_takeover.method import sampling as current
from lm_eval_takeover.method.request import Sampling

ROWS, TURNS = 4, 12
SETTINGS = [Sampling(1.0), Sampling(0.6), Sampling(1.0, 1.0, 50_000), Sampling(0.6, 0.95), Sampling()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--vocab", type=int, default=151_936)
    options = parser.parse_args()
    torch.set_num_threads(1)
    before = load(options.revision)
    for name, logits in make_logits(options.vocab).items():
        for how in SETTINGS:
            print(f"{name:7} {how!s:55} {compare(before, logits, how)}", flush=True)


def load(revision: str) -> ModuleType:
    """The module of the race as it was."""
    text = subprocess.run(
        ["git", "show", f"{revision}:lm_eval_takeover/method/sampling.py"], capture_output=True, text=True, check=True
    ).stdout
    module = ModuleType("before")
    exec(compile(text, "before", "exec"), module.__dict__)
    return module


def make_logits(vocab: int) -> dict[str, NDArray[np.float32]]:
    """Of random weights, and with the long tail of trained ones."""
    rng = np.random.default_rng(0)
    peaked = rng.gumbel(size=(ROWS, vocab)) * 2.2
    peaked[:, 5] += 8
    return {"flat": rng.standard_normal((ROWS, vocab)).astype(np.float32), "peaked": peaked.astype(np.float32)}


def compare(before: Any, logits: NDArray[np.float32], how: Sampling) -> str:
    rng, seconds, same = np.random.default_rng(1), [0.0, 0.0], True
    for turn in range(TURNS):
        at = rng.integers(0, 2**64, ROWS, dtype=np.uint64)
        drawn = {}
        for place in (0, 1) if turn % 2 else (1, 0):
            module = (before, current)[place]
            started = time.process_time()
            with module.drawing():
                drawn[place] = module.draw_on_cpu(logits.copy(), at, how)[0].tolist()
            seconds[place] += time.process_time() - started
        same &= drawn[0] == drawn[1]
    old, new = (1000 * one / TURNS / ROWS for one in seconds)
    return f"{old:.2f} ms before, {new:.2f} ms now, {old / new:.2f}x, tokens {'the same' if same else 'DIFFER'}"


if __name__ == "__main__":
    main()

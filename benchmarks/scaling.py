"""How the time of guided decoding grows: with the length of a text, with the number of requests; and its memory.

    python benchmarks/scaling.py [--pair 1:13] [--rate 0.05]

Blocks of 8 at batch 1 beside the costs of the models' own passes at the same lengths; 64 and 640 requests at batch 8 (of
fewer, the slots that stay empty at the end would count); resident memory after each of six times 100 requests.
"""

import argparse
import math
import time

import psutil
from random_pairs import SAMPLING, costs, gated, load, pair_folders

from lm_eval_takeover.decoding import blockwise
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.pair import Pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=["1:13", "1:26"], default="1:13")
    parser.add_argument("--rate", type=float, default=0.05)
    options = parser.parse_args()
    with pair_folders(options.pair, 8192, "float32") as folders:
        scaling(load(folders, "cpu", "float32"), options.rate)


def scaling(pair: Pair, rate: float) -> None:
    """Time per token as texts grow, 10 times the requests, and memory over 500 requests."""
    prompt = tuple(pair.encode("Problem: how far is it from here? " * 3))
    policy = gated(pair, [Request(prompt, j, 64, SAMPLING) for j in range(16)], rate)
    print("|tokens written|ms per token|over the first|b + G(8)/8 at that length|over the first|\n|--:|--:|--:|--:|--:|")
    first: tuple[float, float] | None = None
    for length in (256, 512, 1024, 2048, 4096):
        started = time.perf_counter()
        made = [g for _, g in blockwise.generate(pair, policy, [Request(prompt, 0, length, SAMPLING)], block_size=8)]
        ours = (time.perf_counter() - started) / sum(len(g.tokens) for g in made)
        b, guide = costs(pair, 1, len(prompt) + length // 2).turns
        models = b + guide[8] / 8
        first = first or (ours, models)
        print(f"|{length}|{ours * 1e3:.2f}|{ours / first[0]:.2f}|{models * 1e3:.2f}|{models / first[1]:.2f}|", flush=True)
    seconds: dict[int, float] = {}
    for count in (64, 640, 64, 640):
        asked = [Request(prompt, j, 16, SAMPLING) for j in range(count)]
        started = time.perf_counter()
        list(blockwise.generate(pair, policy, asked, batch_size=8))
        seconds[count] = min(seconds.get(count, math.inf), time.perf_counter() - started)
    print(f"10 times the requests take {seconds[640] / seconds[64]:.2f} times the time")
    memory = []
    for _ in range(6):
        list(blockwise.generate(pair, policy, [Request(prompt, j, 8, SAMPLING) for j in range(100)], batch_size=16))
        memory.append(psutil.Process().memory_info().rss / 2**20)
    print(f"resident memory after each 100 requests, MiB: {', '.join(f'{one:,.0f}' for one in memory)}")


if __name__ == "__main__":
    main()

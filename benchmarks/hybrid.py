"""What blocks bring a pair of hybrid models: tokens per second at batch 1, lockstep and blocks in one interleaved run.

    python benchmarks/hybrid.py [--tokens 64] [--rounds 3]

A random pair as Qwen3.5 builds it, three gated delta rules to one layer of full attention (`random_pairs.py`), in float32; tau is
set so that about a twentieth of the tokens is taken over.
"""

import argparse
import statistics

import torch
from random_pairs import SAMPLING, clock, gated, load, pair_folders

from lm_eval_takeover.decoding import engine
from lm_eval_takeover.method.request import Request

BLOCK_SIZES: tuple[int | str, ...] = (1, 8, "auto")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with pair_folders("hybrid", 8192, "float32") as folders:
        pair = load(folders, "cpu", "float32")
    prompts = [tuple(pair.encode(f"Problem: how far is {i} from here? " * 3)) for i in range(2)]
    requests = [Request(prompt, 0, options.tokens, SAMPLING) for prompt in prompts]
    policy = gated(pair, requests, 0.05)
    speeds: dict[int | str, list[float]] = {size: [] for size in BLOCK_SIZES}
    texts, passes = {}, {}
    for _ in range(options.rounds):
        for size in BLOCK_SIZES:
            started = clock()
            made = dict(engine.generate(pair, policy, requests, block_size=size))
            seconds = clock() - started
            count = sum(len(one.tokens) for one in made.values())
            speeds[size].append(count / seconds)
            texts[size] = [made[i].tokens for i in range(len(requests))]
            passes[size] = sum(one.guide_passes for one in made.values()) / count
    print(f"{torch.get_num_threads()} threads\n\n|block_size|tokens/s|over lockstep|guide passes a token|texts equal|")
    print("|---|--:|--:|--:|--:|")
    for size in BLOCK_SIZES:
        ratios = [a / b for a, b in zip(speeds[size], speeds[1], strict=True)]
        equal = sum(a == b for a, b in zip(texts[size], texts[1], strict=True))
        print(
            f"|{size}|{statistics.median(speeds[size]):.1f}|{statistics.median(ratios):.2f}|{passes[size]:.3f}|"
            f"{equal} of {len(requests)}|"
        )


if __name__ == "__main__":
    main()

"""Tokens a second of blocks beside the guide alone, by batch size, in turns.

    python benchmarks/gpu_batches.py [--device cuda] [--pair qwen3] [--dtype bfloat16]

Random weights stand for models, with the same short prompt for every text. Medians of `--rounds`, after a round that captures.
"""

import argparse
import statistics

from random_pairs import clock, gated, load, pair_folders, wait

from lm_eval_takeover.decoding import blockwise
from lm_eval_takeover.method.policies import GuideAlone
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.pair import Pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pair", default="qwen3", choices=["demo", "1:13", "1:26", "qwen3"])
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--rate", type=float, default=0.05, help="of takeovers, about")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with pair_folders(options.pair, 8192, options.dtype, 0.5) as folders:
        pair = load(folders, options.device, options.dtype)
    guided, alone = gated(pair, ask(4, 128), options.rate), Pair(None, pair.guide)
    print("|batch|takeovers|guided, tokens/s|guide alone|guided over it|\n|--:|--:|--:|--:|--:|")
    for batch in options.batch:
        requests = ask(batch, options.tokens)
        rounds = [(run(pair, guided, requests), run(alone, GuideAlone(), requests)) for _ in range(options.rounds + 1)]
        ours, guide = (statistics.median(one[place][0] for one in rounds[1:]) for place in (0, 1))
        ratio = statistics.median(one[0][0] / one[1][0] for one in rounds[1:])
        print(f"|{batch}|{rounds[0][0][1]:.1%}|{ours:,.0f}|{guide:,.0f}|{ratio:.2f}|", flush=True)


def ask(samples: int, tokens: int) -> list[Request]:
    return [Request(tuple(range(5, 37)), sample, tokens, Sampling(0.6, 0.95)) for sample in range(samples)]


def run(pair: Pair, policy: Policy, requests: list[Request]) -> tuple[float, float]:
    """Tokens a second of one batch, and the share of takeovers."""
    device = pair.members[-1].device
    wait(device)
    started = clock()
    made = [one for _, one in blockwise.generate(pair, policy, requests, batch_size=len(requests))]
    wait(device)
    tokens = sum(len(one.tokens) for one in made)
    return tokens / (clock() - started), sum(one.takeovers for one in made) / tokens


if __name__ == "__main__":
    main()

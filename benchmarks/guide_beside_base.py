"""Is a guide with its base beside it ever slower than alone? Tokens per second of `policy=guide` over those of the guide alone.

    nice python benchmarks/guide_beside_base.py [--pairs 1:1 1:4 1:26] [--batch 1 8] [--rounds 5]

One core, processor time, both in turns, 384 tokens a text. Pairs of random weights agree at few tokens, the demo pair at most:
drafts pay for it alone. Exits with 1 where a median is below 0.97.
"""

import argparse
import statistics

import torch
from random_pairs import clock, load, pair_folders

from lm_eval_takeover.decoding import engine
from lm_eval_takeover.demo import PROMPT, problems
from lm_eval_takeover.method.policies import GuideAlone
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.pair import Pair

LEAST = 0.97


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", default=["1:1", "1:4", "1:26", "demo"])
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("|pair|batch|with the base over alone|passes of the base|\n|---|--:|--:|--:|")
    slowest = 1.0
    for name in options.pairs:
        with pair_folders(name, options.vocab, options.dtype, entropy=1.0) as folders:
            pair = load(folders, "cpu", options.dtype)
        alone = Pair(None, pair.guide)
        for batch in options.batch:
            prompts = [tuple(pair.encode(PROMPT.format(problem=row["problem"]))) for row in problems()[: max(8, batch)]]
            requests = [Request(prompt, 0, options.tokens, Sampling(0.6, 0.95)) for prompt in prompts]
            ratios, passes = list[float](), 0
            for round_ in range(options.rounds + 1):
                seconds = []
                for members in (alone, pair):
                    started = clock()
                    made = [one for _, one in engine.generate(members, GuideAlone(), requests, batch_size=batch)]
                    seconds.append((clock() - started) / sum(len(one.tokens) for one in made))
                    passes = sum(one.base_passes for one in made)
                if round_:  # the first round warms up
                    ratios.append(seconds[0] / seconds[1])
            slowest = min(slowest, statistics.median(ratios))
            print(f"|{name}|{batch}|{statistics.median(ratios):.2f}|{passes}|", flush=True)
    raise SystemExit(0 if slowest >= LEAST else 1)


if __name__ == "__main__":
    main()

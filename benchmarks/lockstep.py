"""Speed of the lockstep engine beside lm-eval's own `hf`, as ratios in one interleaved run on the demo pair.

    python benchmarks/lockstep.py [--rounds 5] [--problems 8] [--batch_size 64]

Every round runs every contender once (A B C A B C …); the table gives the median tokens/s and the ratio to lm-eval's `hf` on
the same model. `hf` clones each request 8 times and prefills every clone. The bound of lockstep is what its two
models cost when each runs alone on the same rows: `1 / (1 / base + 1 / guide)`.
"""

import argparse
import statistics
import time

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from lm_eval_takeover.demo import DEMO, problems
from lm_eval_takeover.model import GuidedTakeover

SAMPLES = 8
TOKENS = 96


def requests(count: int) -> list[Instance]:
    """8 greedy samples of each problem: every contender emits the same number of tokens, and no text ends before it."""
    settings = {"do_sample": False, "max_gen_toks": TOKENS, "until": []}
    made = []
    for i, row in enumerate(problems()[:count]):
        prompt = f"Problem: {row['problem']}\nSolution:"
        made += [Instance("generate_until", {}, (prompt, settings), 0, metadata=("bench", i, SAMPLES))] * SAMPLES
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=64)
    options = parser.parse_args()
    work = requests(options.problems)
    contenders = {
        "hf base": HFLM(pretrained=str(DEMO["base"]), batch_size=options.batch_size, dtype="float32", device="cpu"),
        "hf guide": HFLM(pretrained=str(DEMO["guide"]), batch_size=options.batch_size, dtype="float32", device="cpu"),
        **{
            name: GuidedTakeover(
                policy=name,
                device="cpu",
                batch_size=options.batch_size,
                allow_calibration_mismatch=True,  # greedy, as hf is here
            )
            for name in ("base", "guide", "disagreement")
        },
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(options.rounds + 1):
        for name, lm in contenders.items():
            started = time.perf_counter()
            lm.generate_until(work, disable_tqdm=True)
            if round_:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    speed = {name: len(work) * TOKENS / statistics.median(times) for name, times in seconds.items()}
    bound = 1 / (1 / speed["base"] + 1 / speed["guide"])
    print(
        f"{len(work)} samples of {TOKENS} tokens, batch {options.batch_size}, {torch.get_num_threads()} threads, "
        f"{options.rounds} rounds\n\n|contender|tokens/s|beside|ratio|\n|---------|-------:|------|----:|"
    )
    for name, peer in (("base", "hf base"), ("guide", "hf guide")):
        print(f"|{name} alone|{speed[name]:,.0f}|lm-eval {peer}|{speed[name] / speed[peer]:.2f}|")
    guided = speed["disagreement"]
    print(f"|guided, lockstep|{guided:,.0f}|the bound of lockstep|{guided / bound:.2f}|")
    print(f"|guided, lockstep|{guided:,.0f}|guide alone|{guided / speed['guide']:.2f}|")


if __name__ == "__main__":
    main()

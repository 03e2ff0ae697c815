"""What each part of the schedule is worth, as ratios in one interleaved run.

    python benchmarks/schedule.py [--pair demo] [--batch 1 8 32] [--rounds 5] [--dtype float32]

A ratio above 1 says that the engine as it is beats the variant. Guided, `block_size=auto`:

    measured costs    the two models' passes timed on this machine beforehand, instead of modelled on their shapes
    no foresight      every position ends a draft with the overall rate, whatever the drafter's min-entropy
    cost ratio        the length by the overall rate and the ratio of both models' passes alone, whatever the rows
    best fixed block  the fastest of blocks of 4, 6, 8, 12 and 16 tokens

The demo pair is trained; in pairs of random weights nothing predicts a takeover.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from random_pairs import SAMPLING, clock, costs, gated, load, pair_folders

from lm_eval_takeover.decoding import blockwise
from lm_eval_takeover.decoding import costs as modelled
from lm_eval_takeover.demo import PROMPT, problems
from lm_eval_takeover.forward.caches import LONGEST, longest_draft
from lm_eval_takeover.forward.forward_pass import ForwardPass
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Disagreement
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.pair import Pair

BLOCKS = (4, 6, 8, 12, 16)


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    plain = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def measured(pair: Pair, batch: int, length: int) -> Callable[[ForwardPass], modelled.PassCost]:
    """`PassCost.of` from passes that are timed now: a line through one token a row and twelve, in turns."""
    b, guide = costs(pair, batch, length).turns
    slope = max(guide[12] - guide[1], 0.0) / (11 * batch)
    by_role = {
        "base": modelled.PassCost(b, 0.0),
        "guide": modelled.PassCost(guide[1] - slope * batch, slope),
    }
    return lambda forward: by_role[forward.member.role]


def speed(pair: Pair, policy: Policy, requests: list[Request], batch: int, block: int | None = None) -> float:
    started = clock()
    made = dict(blockwise.generate(pair, policy, requests, batch_size=batch, block_size=block))
    return sum(len(one.tokens) for one in made.values()) / (clock() - started)


def compare(title: str, runs: dict[str, Callable[[], float]], rounds: int) -> None:
    """Interleaved; the first of `runs` is the engine as it is."""
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(rounds + 1):
        for name, run in runs.items():
            tokens_per_second = run()
            if round_:  # the first round warms up
                speeds[name].append(tokens_per_second)
    first, *others = speeds.values()
    for name, other in zip(list(runs)[1:], others, strict=True):
        ratios = [a / b for a, b in zip(first, other, strict=True)]
        print(f"|{title}|{name}|{statistics.median(ratios):.3f}|{min(ratios):.3f} to {max(ratios):.3f}|", flush=True)


def measure(pair: Pair, requests: list[Request], guided: Policy, batch: int, rounds: int) -> None:
    of = measured(pair, batch, len(requests[0].prompt) + requests[0].max_new_tokens // 2)
    overall = modelled.MismatchRates

    def with_measured() -> float:
        with patched(modelled.PassCost, "of", staticmethod(of)):
            return speed(pair, guided, requests, batch)

    def without_foresight() -> float:
        with patched(overall, "rate", lambda self, _: self.overall):
            return speed(pair, guided, requests, batch)

    def choose_length(self: modelled.Schedule, rows: int, vocab: int, device: torch.device) -> int:
        ratio = self._costs.drafter.fixed / self._costs.target.fixed
        lengths = np.arange(1, longest_draft(rows, vocab, device) + 1)
        return int(lengths[((lengths * ratio + 1) / modelled.expect_tokens(lengths, self.rates.overall)).argmin()])

    def by_cost_ratio() -> float:
        never = [0.0] * (LONGEST + 2)  # rows that must stand: a draft has its whole length
        own = modelled.Schedule
        with patched(own, "limit", choose_length), patched(own, "break_even_rows", lambda *_, **__: never):
            return speed(pair, guided, requests, batch)

    fixed = {block: statistics.median(speed(pair, guided, requests, batch, block) for _ in range(3)) for block in BLOCKS}
    best = max(fixed, key=lambda block: fixed[block])
    compare(
        f"guided, batch {batch}",
        {
            "as it is": lambda: speed(pair, guided, requests, batch),
            "measured costs": with_measured,
            "no foresight": without_foresight,
            "cost ratio": by_cost_ratio,
            f"best fixed block ({best})": lambda: speed(pair, guided, requests, batch, best),
        },
        rounds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=["demo", "1:13", "1:26"], default="demo")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rows", type=int, default=2, help="samples, in batches")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    with pair_folders(options.pair, 8192, options.dtype) as folders:
        pair = load(folders, "cpu", options.dtype)
    demo = options.pair == "demo"
    sampling = Sampling(0.6, 0.95) if demo else SAMPLING
    prompts = [tuple(pair.encode(PROMPT.format(problem=row["problem"]))) for row in problems()]
    print(f"{options.pair}, {options.dtype}\n\n|run|variant|ratio|rounds|\n|---|---|--:|--:|")
    for batch in options.batch:
        samples, rows = min(8, batch), options.rows * batch + 6 * (batch == 1)
        requests = [Request(p, j, options.tokens, sampling) for p in prompts for j in range(samples)][:rows]
        guided: Policy = Disagreement(gate=Gate(1.5, 2.0))
        if not demo:
            guided = gated(pair, [replace(one, max_new_tokens=64) for one in requests[:8]], 0.05)
        measure(pair, requests, guided, batch, options.rounds)


if __name__ == "__main__":
    main()

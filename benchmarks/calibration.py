"""Is a calibration right, stable and small? Measured on the bundled demo pair.

    python benchmarks/calibration.py [--prompts 500] [--rates 0.02 0.05 0.1] [--only exact]

exact    tau and kappa of the file against numpy on all scores
rates    spike ratios solved for a wanted rate on held-out prompts, realized on 400 fresh ones that no calibration has seen
sets     tau from three disjoint sets of prompts
"""

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.calibration.files import Calibration
from lm_eval_takeover.calibration.tuning import Method
from lm_eval_takeover.commands.calibrate.measurement import calibrate
from lm_eval_takeover.commands.calibrate.prompts import Prompts, read_prompts
from lm_eval_takeover.commands.calibrate.rollouts import Setup
from lm_eval_takeover.decoding.engine import TransformersBackend
from lm_eval_takeover.decoding.lockstep import generate
from lm_eval_takeover.decoding.teacher_forcing import force
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, PROMPT, calibration_prompts, problems
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import BaseAlone, Disagreement, Gated
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.pair import Pair, load_pair

sys.path.append(str(Path(__file__).parent.parent / "scripts"))

from puzzle import make_puzzle

RHO = (0.005, 0.01, 0.03, 0.05, 0.1)
SAMPLING = Sampling(0.6, 0.95)


def fresh_prompts(count: int, seed: int) -> list[str]:
    """Prompts of new puzzles, none of which is packaged."""
    used = {*(row["problem"] for row in problems()), *calibration_prompts()}
    rng = random.Random(seed)
    made: dict[str, None] = {}
    while len(made) < count:
        problem = make_puzzle(rng).text
        if problem not in used and PROMPT.format(problem=problem) not in used:
            made[PROMPT.format(problem=problem)] = None
    return list(made)


def as_prompts(texts: list[str]) -> Prompts:
    source = {"dataset": "puzzles", "seed": 0, "indices": list(range(len(texts))), "held_out_indices": [], "digest": ""}
    source |= {"chat_template": False, "enable_thinking": None, "problems": [], "template_digest": []}
    return Prompts(tuple(texts), (), source)


def exact(pair: Pair, made: Calibration, prompts: Prompts) -> None:
    """Every score of every token by a way of its own: rollouts, then teacher forcing one prompt at a time, then numpy."""
    requests = [Request(tuple(pair.encode(text)), 0, 4096, SAMPLING) for text in prompts.texts]
    limit = pair.max_length or 2048
    requests = [replace(r, max_new_tokens=min(4096, limit - len(r.prompt))) for r in requests]
    written = dict(generate(pair, BaseAlone(), requests, seed=0, batch_size=250))
    rollouts = [tuple(written[number].tokens) for number in range(len(requests))]
    print("|score|spike ratio|tau|numpy|kappa|numpy|tail kappa|numpy|\n|---|--:|--:|--:|--:|--:|--:|--:|")
    for score in made.scores:
        policy = Gated(score=score, gate=Gate(1.0))
        found = [force(pair, policy, [r.prompt], [tokens])[0].scores for r, tokens in zip(requests, rollouts, strict=True)]
        values = np.concatenate([one.double().numpy() for one in found])
        for rho in RHO:
            tau = np.quantile(values, 1 - rho)
            kappas = tau / values.mean(), values[values > tau].mean() / values.mean()
            held = made.scores[score].threshold(rho)
            pairs = ((held["tau"], tau), (held["kappa_threshold_to_mean"], kappas[0]), (held["kappa_tail_to_mean"], kappas[1]))
            print(f"|{score}|{rho:.1%}|" + "|".join(f"{a:.6g}|{b:.6g}" for a, b in pairs) + "|")


def rates(pair: Pair, made: Calibration, prompts: list[str]) -> None:
    """Realized rates on prompts that neither the calibration nor the solver has seen."""
    requests = [Request(tuple(pair.encode(text)), 0, 1024, SAMPLING) for text in prompts]
    print("|asked|spike ratio|realized, held out|realized, fresh|fresh tokens|\n|--:|--:|--:|--:|--:|")
    for target in made.targets:
        policy = Method(Disagreement(score=target.method["score"])).at(target.value, made)
        written = [g for _, g in generate(pair, policy, requests, seed=1, batch_size=200)]
        tokens = sum(len(g.tokens) for g in written)
        fresh = sum(g.takeovers for g in written) / tokens
        print(
            f"|{target.target_rate:.1%}|{target.value:.4%}|{target.realized_rate:.2%}|{fresh:.2%}|{tokens:,}|",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.02, 0.05, 0.1])
    parser.add_argument("--only", choices=["exact", "rates", "sets"])
    options = parser.parse_args()

    def wanted(name: str) -> bool:
        return options.only in (None, name)

    pair = load_pair(ModelArguments())
    backend = TransformersBackend(ModelArguments(), pair, Disagreement())
    if wanted("exact") or wanted("rates"):
        prompts = read_prompts(str(CALIBRATION_PROMPTS), count=options.prompts, held_out=200)
        made = calibrate(
            Setup(backend=backend, prompts=prompts, sampling=SAMPLING, batch_size=250),
            wanted=[(Method(Disagreement()), options.rates)] if wanted("rates") else [],
        )
        if wanted("exact"):
            exact(pair, made, prompts)
        if wanted("rates"):
            rates(pair, made, fresh_prompts(400, seed=1))
    if wanted("sets"):
        texts = fresh_prompts(3 * options.prompts, seed=2)
        sets = [
            calibrate(Setup(backend=backend, prompts=as_prompts(texts[number::3]), sampling=SAMPLING, batch_size=250))
            for number in range(3)
        ]
        found = [[made.score("ce").threshold(rho) for rho in RHO] for made in sets]
        print(f"|calibration set|{'|'.join(f'{rho:.1%}' for rho in RHO)}|\n|---|{len(RHO) * '---:|'}")
        for number, row in enumerate(found, 1):
            cells = (f"{one['tau']:.3f} / {one['kappa_threshold_to_mean']:.3f}" for one in row)
            print(f"|set {number}|{'|'.join(cells)}|")
        spreads = [max(one["tau"] for one in column) / min(one["tau"] for one in column) for column in zip(*found, strict=True)]
        print(f"|largest tau over smallest|{'|'.join(f'{spread:.3f}' for spread in spreads)}|")


if __name__ == "__main__":
    main()

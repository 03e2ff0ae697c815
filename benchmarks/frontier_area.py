"""The area under a frontier, simulated: how often its interval covers, and how often two copies of one method differ.

    python benchmarks/frontier_area.py             # 1,000 draws a cell, five seconds on one core
    python benchmarks/frontier_area.py --draws 10000

Problems differ in difficulty, and each rate of a method moves the odds of all. Samples of all rates are drawn anew,
while real runs share random numbers, so that their intervals are narrower.
"""

import argparse
from itertools import product

import numpy as np
from numpy.typing import NDArray

from lm_eval_takeover.results.frontier import CAP, Curve, compare_areas, weigh_rates

RATES = np.array([0.01, 0.02, 0.05, 0.1, 0.2])
STEPS = np.array([0.6, 1.0, 1.8, 2.4, 2.8])  # what each rate adds to the log-odds of a problem
SIZES = (30, 100, 200)
SAMPLES = 8
HARDNESS = (-2.0, 0.0, 1.5)  # mean log-odds of the host; their standard deviation over problems is 1.5


def draw_odds(generator: np.random.Generator, hardness: float, problems: int) -> NDArray[np.float64]:
    """Probabilities of a correct sample `[rates and the host, problems]`."""
    odds = generator.normal(hardness, 1.5, problems)
    return np.asarray(1 / (1 + np.exp(-(odds + np.concatenate([[0.0], STEPS])[:, np.newaxis]))))


def true_area(generator: np.random.Generator, hardness: float) -> float:
    chances = draw_odds(generator, hardness, 400_000).mean(axis=1)
    return float(weigh_rates(RATES, CAP) @ (chances[1:] - chances[0]))


def draw_curve(generator: np.random.Generator, chances: NDArray[np.float64], host: NDArray[np.float64]) -> Curve:
    gains = generator.binomial(SAMPLES, chances[1:]) / SAMPLES - host
    return Curve(RATES, [gains], [SAMPLES], np.concatenate([[0.0], RATES]))


def simulate(generator: np.random.Generator, hardness: float, problems: int, draws: int) -> tuple[float, float]:
    """`(coverage of the area, share of draws in which a copy of the method differs from it)`."""
    truth, covered, differed = true_area(generator, hardness), 0, 0
    for _ in range(draws):
        chances = draw_odds(generator, hardness, problems)
        host = generator.binomial(SAMPLES, chances[0]) / SAMPLES
        curves = {name: draw_curve(generator, chances, host) for name in ("one", "copy")}
        one, _ = compare_areas(curves, ["copy"], None)
        interval = one.area.interval()
        covered += interval.low <= truth <= interval.high
        differed += one.p_holm is not None and one.p_holm < 0.05
    return covered / draws, differed / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    print("|problems|host's Acc|area covered|two copies differ|\n|--:|--:|--:|--:|")
    found = []
    for problems, hardness in product(SIZES, HARDNESS):
        acc = draw_odds(generator, hardness, 100_000)[0].mean()
        found.append(simulate(generator, hardness, problems, options.draws))
        print("|{}|{:.0%}|{:.1%}|{:.1%}|".format(problems, acc, *found[-1]), flush=True)
    covered, differed = zip(*found, strict=True)
    error = 2 * (0.05 * 0.95 / options.draws) ** 0.5
    print(
        f"\nLeast covered: {min(covered):.1%}, asked for: 95 %. Most often different: {max(differed):.1%}, at most: 5 %."
    )
    print(
        f"{options.draws:,} draws a cell: a share of 5 or 95 % is known to {100 * error:.1f} points (two standard errors)."
    )


if __name__ == "__main__":
    main()

"""The area under a frontier, simulated: how often its interval covers, and how often two copies of one method differ.

    python benchmarks/frontier_area.py             # 1,000 draws a cell, half a minute on one core
    python benchmarks/frontier_area.py --draws 10000

Problems differ in difficulty. A method raises the log-odds of each by a curve of the rate: `smooth`, `steep` with one jump at a
rate that is drawn anew each time, with one jump exactly `on a rate` that is measured, or with 2 to 5 jumps that gain as much.
Two errors are in all draws: the curve is known at five rates only, and a calibration misses each rate by 5 % (standard
deviation). The truth is the area under the whole curve. Samples of all rates are drawn anew, while real runs share random
numbers, so that their intervals are narrower.

`at the rates` is the interval over problems alone, and what it covers the area by the trapezoid rule of the true gains at the
rates that were measured. `width` is the mean width of the interval of the area over that of the interval over problems alone.
An interval that holds wherever a jump lies, at a measured rate too, holds more than 95 % of jumps that may lie anywhere.
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from lm_eval_takeover.lab.frontier.curves import CAP, Curve, compare_areas, find_areas

Values = NDArray[np.float64]
RATES = np.array([0.01, 0.02, 0.05, 0.1, 0.2])
MISSED = 0.05  # of a rate, by the calibration
SIZES = (40, 100, 200, 500)
SAMPLES = 8
HARDNESS, SPREAD = 0.0, 1.5  # mean log-odds of the host, and their standard deviation over problems
_FINE = np.linspace(0, CAP, 401)
_LEVELS = np.linspace(0, 3, 61)  # by which log-odds rise, and the mean Acc that they lead to
_MEANS = expit(ndtri((np.arange(2000) + 0.5) / 2000)[:, np.newaxis] * SPREAD + HARDNESS + _LEVELS).mean(axis=0)


def draw_smooth(generator: np.random.Generator) -> Callable[[Values], Values]:
    return lambda rates: np.asarray(3 * rates / (rates + 0.03))


def draw_steep(generator: np.random.Generator) -> Callable[[Values], Values]:
    """A jump somewhere below the cap."""
    place = generator.uniform(0, CAP)
    return lambda rates: np.asarray(3.0 * (rates >= place))


def draw_on_a_rate(generator: np.random.Generator) -> Callable[[Values], Values]:
    """A jump exactly where a measured rate is meant to be, so that the calibration's error decides on which side it falls."""
    place = generator.choice(RATES[RATES < CAP])
    return lambda rates: np.asarray(3.0 * (rates >= place))


def draw_jumps(generator: np.random.Generator, count: int) -> Callable[[Values], Values]:
    """Jumps that gain as much, one in each of the last stretches below the cap; of 5, two in the last one."""
    known = np.append(0.0, RATES[RATES <= CAP])
    ends = np.stack([known[:-1], known[1:]], axis=1)
    places = generator.uniform(*ends[np.clip(np.arange(count) + len(ends) - min(count, 4), 0, len(ends) - 1)].T)

    def raise_odds(rates: Values) -> Values:
        passed = (rates[:, np.newaxis] >= places).mean(axis=1)
        return np.asarray(np.interp(_MEANS[0] + passed * (_MEANS[-1] - _MEANS[0]), _MEANS, _LEVELS))

    return raise_odds


CURVES = {"smooth": draw_smooth, "steep": draw_steep, "on a rate": draw_on_a_rate}
CURVES |= {f"{count} jumps": partial(draw_jumps, count=count) for count in (2, 3, 4, 5)}


def draw_curve(generator: np.random.Generator, raised: Callable[[Values], Values], odds: Values, host: Values) -> Curve:
    """One calibration and one run of a method at each rate; `host` are the host's shares of correct samples."""
    rates = np.sort(RATES * (1 + MISSED * generator.standard_normal(len(RATES))))
    chances = 1 / (1 + np.exp(-(odds + raised(rates)[:, np.newaxis])))
    return Curve(rates, [generator.binomial(SAMPLES, chances) / SAMPLES - host])


class Found(NamedTuple):
    """Shares of draws: two coverages, and how often a copy of the method differs from it; a ratio of widths."""

    covered: float
    at_the_rates: float
    differed: float
    width: float


def simulate(
    generator: np.random.Generator,
    draw: Callable[[np.random.Generator], Callable[[Values], Values]],
    problems: int,
    draws: int,
) -> Found:
    found = []
    for _ in range(draws):
        raised, odds = draw(generator), generator.normal(HARDNESS, SPREAD, problems)
        host = generator.binomial(SAMPLES, 1 / (1 + np.exp(-odds))) / SAMPLES
        curves = {name: draw_curve(generator, raised, odds, host) for name in ("method", "copy")}
        curve, cap = curves["method"], min(CAP, *(float(curve.costs[-1]) for curve in curves.values()))
        rates = np.append(0.0, curve.costs)
        whole, known = (float(find_areas(at, np.interp(raised(at), _LEVELS, _MEANS) - _MEANS[0], cap)) for at in (_FINE, rates))
        method, _ = compare_areas(curves, ["copy"], cap)
        own, over_problems = method.area.interval(), method.area.mean.interval()
        found.append(
            (
                own.low <= whole <= own.high,
                over_problems.low <= known <= over_problems.high,
                method.p_holm is not None and method.p_holm < 0.05,
                (own.high - own.low) / (over_problems.high - over_problems.low),
            )
        )
    return Found(*np.mean(found, axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    print("|curve|problems|area covered|at the rates|two copies differ|width|\n|---|--:|--:|--:|--:|--:|")
    for (name, draw), problems in product(CURVES.items(), SIZES):
        print(
            "|{}|{}|{:.1%}|{:.1%}|{:.1%}|{:.2f}|".format(name, problems, *simulate(generator, draw, problems, options.draws)),
            flush=True,
        )
    error = 2 * (0.05 * 0.95 / options.draws) ** 0.5
    print(f"\n{options.draws:,} draws a cell: a share of 5 or 95 % is known to {100 * error:.1f} points (two standard errors).")


if __name__ == "__main__":
    main()

"""A method's share of the oracle's area, simulated: how often its interval covers, and what each bound alone would.

    python benchmarks/oracle_share.py              # 100 draws a cell, five minutes on one core

A text has 100 tokens, and at 20 of them host and guide differ, on average. There a takeover is worth something at one place in
five, more so where the host is often wrong; it harms at one in twenty. The method takes over where a noisy view of the effect is
large, and its gain is the sum of effects. The oracle is read from about 400 positions, drawn more often where that view is large,
with 8 continuations behind each token. The share is of the oracle of shrunk effects, and so is the upper bound; the lower one is
of the oracle of effects as measured. The truth is of 4,000 problems and true effects.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from lm_eval_takeover.lab.frontier.curves import Curve, Oracle
from lm_eval_takeover.lab.measures.effects import EFFECTS, Outcomes
from lm_eval_takeover.results.statistics import Interval

Values = NDArray[np.float64]
CAP, RATES, TOKENS, SAMPLES, PAIRS, MEASURED = 0.1, (0.01, 0.02, 0.05, 0.1), 100, 8, 8, 400
SIZES = (40, 100, 200)
NOISES = {"close": 0.05, "far": 0.3}  # of the method's view of an effect


class World:
    """A population of problems: the host's Acc, and a place for each position where the models differ, with its true effect."""

    def __init__(self, rng: np.random.Generator, problems: int, noise: float) -> None:
        self.host = rng.beta(0.8, 1.2, problems)
        self.owner = np.repeat(np.arange(problems), rng.poisson(20 * SAMPLES, problems))
        kind = rng.random(len(self.owner))
        room = 1 - self.host[self.owner]
        self.effects = np.where(kind < 0.2, room * rng.beta(1, 3, len(kind)), np.where(kind > 0.95, -0.1 * (1 - room), 0.0))
        self.view = self.effects + rng.normal(0, noise, len(kind))

    def choose(self, rate: float) -> NDArray[np.bool_]:
        """Where the method takes over at this rate."""
        count = int(rate * TOKENS * SAMPLES * len(self.host))
        return np.asarray(self.view >= np.partition(self.view, -count)[-count])

    def gains(self, chosen: NDArray[np.bool_]) -> Values:
        """By problem: effects add up within a text, and no text is more than right."""
        totals = np.bincount(self.owner, weights=self.effects * chosen, minlength=len(self.host)) / SAMPLES
        return np.clip(totals, -self.host, 1 - self.host)


def read_shares(world: World, problems: NDArray[np.int64], rng: np.random.Generator | None) -> list[Interval]:
    """The share of the oracle on these problems: as `compare` has it, of shrunk and of measured effects alone; or the truth."""
    inside = np.flatnonzero(np.isin(world.owner, problems))
    places = np.searchsorted(problems, world.owner[inside])
    effects, owned, host = world.effects[inside], len(problems), world.host[problems]
    levels = [host, *(host + world.gains(world.choose(rate))[problems] for rate in RATES)]
    accs = levels if rng is None else [rng.binomial(SAMPLES, np.clip(level, 0, 1)) / SAMPLES for level in levels]
    curve, wrong = Curve(np.array(RATES), [np.stack(accs[1:]) - accs[0]]), [1 - accs[0]]
    room, cost, worth = float(wrong[0].mean()), 1 / (TOKENS * SAMPLES * owned), 1 / (SAMPLES * owned)
    if rng is None:
        known = Oracle.of(np.full(len(effects), cost), effects * worth, room, places)
        return [curve.share_of([known], wrong, CAP)]
    large = world.view[inside] > 0.1
    inclusion = np.minimum(MEASURED / 2 / np.where(large, large.sum(), (~large).sum()), 1.0)
    drawn = np.flatnonzero(rng.random(len(inclusion)) < inclusion)
    weights, owners = 1 / inclusion[drawn], places[drawn]
    numbers, level = rng.random((len(drawn), PAIRS)), host[owners][:, np.newaxis]
    before, after = numbers < level, numbers < level + effects[drawn][:, np.newaxis]
    gained, lost = (after & ~before).sum(axis=1), (before & ~after).sum(axis=1)
    outcomes = Outcomes(gained, lost, PAIRS)
    both = outcomes.expect(outcomes.fit(weights), EFFECTS[:, np.newaxis])[:, 0], (gained - lost) / PAIRS
    oracles = [Oracle.of(weights * cost, weights * each * worth, room, owners) for each in both]
    return [curve.share_of(some, wrong, CAP) for some in (oracles, oracles[:1], oracles[1:])]


def simulate(rng: np.random.Generator, noise: float, problems: int, draws: int) -> tuple[float, Values]:
    """The true share; and of each kind of `read_shares` the mean share, its coverage and its mean width `[kinds, 3]`."""
    world = World(rng, 4000, noise)
    (truth,) = read_shares(world, np.arange(len(world.host)), None)
    found = []
    for _ in range(draws):
        chosen = np.sort(rng.choice(len(world.host), problems, replace=False))
        shares = read_shares(world, chosen, rng)
        found.append([(each.value, each.low <= truth.value <= each.high, each.high - each.low) for each in shares])
    return truth.value, np.mean(found, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    draws = parser.parse_args().draws
    print("|method|problems|true share|share|covered|width|of shrunk|covered|width|of measured|covered|width|")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, noise in NOISES.items():
        for problems in SIZES:
            truth, found = simulate(np.random.default_rng(problems), noise, problems, draws)
            print(f"|{name}|{problems}|{truth:.1%}|{'|'.join(f'{value:.1%}' for value in found.ravel())}|", flush=True)


if __name__ == "__main__":
    main()

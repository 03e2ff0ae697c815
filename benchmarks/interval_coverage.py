"""How often 95 % intervals hold the true value, where it is known: means, paired differences and Recovery.

    python benchmarks/interval_coverage.py            # 20,000 draws a cell, about two minutes on one core

Difficulties are those of the paper's Table 3 (`difficulties.py`). A line is over all cells of the table that determine one. All
problems of a cell have the same probability of each outcome (how many of 8 samples are correct, in each run), so a draw is how
often each outcome occurs: one multinomial number instead of one number a problem.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from difficulties import Array, Beta, draw_together, joint_outcomes, table3
from scipy import stats
from scipy.special import expit, logit

from lm_eval_takeover.results.statistics import add_unseen, bounds_of, errors_of, measure_recovery

SIZES = (15, 30, 40, 100, 500)
SAMPLES = (1, 8, 32, 64)
# True Acc of two runs, near 0 and 1 and between; and how far the samples of one problem agree (0: independent, 1: all alike).
EDGES = ((0.01, 0.03), (0.01, 0.05), (0.97, 0.99), (0.005, 0.01), (0.05, 0.1), (0.5, 0.55))
ALIKE = (0.02, 0.3)
AGREEMENTS = (0.02, 0.1, 0.4, 0.8)
NEAR_1 = (0.98, 0.99, 0.995, 0.996, 0.998, 0.999, 0.9995)
METRICS = ("acc", "pass@8", "maj@8")
PAIRS = ((0, 1), (0, 2), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7))  # rows of Table 3: base to guided, guided to thinking
TRIOS = ((0, 1, 3), (0, 2, 3), (4, 5, 7), (4, 6, 7))  # base, guided, thinking
# Of `cover_worlds`: distributions of problems' chances, how far log-odds fall, and how many whole problems change on average.
NOISE = ((0.5, 0.5), (0.2, 1.0), (500.0, 500.0))
SHIFT = 0.7
WHOLE = (0.3, 1, 2, 2.5, 3, 3.5, 4, 5, 6.5, 8, 10, 13, 17, 25)
TRIO_DRAWS = 40  # of Recovery, one in so many draws: its intervals are computed one by one


def values_of(metric: str, samples: int) -> Array:
    """The metric of a problem by how many of its samples are correct."""
    correct = np.arange(samples + 1)
    if metric == "acc":
        return correct / samples
    return (correct > (0 if metric == "pass@8" else samples / 2)).astype(float)


def draw_moments(
    generator: np.random.Generator, chances: Array, values: Array, problems: int, draws: int
) -> tuple[Array, Array, Array]:
    """Means and sums of squares and cubes of deviations over the problems of each draw; `chances` are of `values`."""
    counts = generator.multinomial(problems, chances.ravel() / chances.sum(), draws)
    one, two, three = (counts @ values.ravel() ** power / problems for power in (1, 2, 3))
    return one, problems * np.maximum(two - one**2, 0), problems * (three - 3 * one * two + 2 * one**3)


def find_errors(differences: Array) -> Array:
    """Standard errors of `paired_difference` for differences `[draws, problems]`."""
    centred = differences - differences.mean(axis=1, keepdims=True)
    return errors_of(differences.shape[1], add_unseen((centred**2).sum(axis=1), (centred**3).sum(axis=1)))


def cover_edge(
    generator: np.random.Generator, pair: Sequence[float], agreement: float, problems: int, samples: int, draws: int
) -> float:
    """Coverage of the paired difference of Acc between two runs of this true Acc; equal ones are one model with two seeds."""
    weight = 1 / agreement - 1
    betas = [Beta(mean * weight, (1 - mean) * weight) for mean in pair]
    same = pair[0] == pair[1]
    chances = [generator.beta(*betas[0], (draws, problems))] * 2 if same else draw_together(generator, betas, (draws, problems))
    old, new = (generator.binomial(samples, each) / samples for each in chances)
    reach = find_errors(new - old) * stats.t.ppf(0.975, problems - 1)
    return float((abs((new - old).mean(axis=1) - (pair[1] - pair[0])) <= reach + 1e-9).mean())


def cover_mean(generator: np.random.Generator, beta: Beta, metric: str, problems: int, samples: int, draws: int) -> float:
    """Coverage of the mean of a metric."""
    chances, values = joint_outcomes([beta], samples), values_of(metric, samples)
    mean, squares, _ = draw_moments(generator, chances, values, problems, draws)
    low, high = bounds_of(problems, mean, squares)
    return _share_inside(low, high, float(chances @ values))


def cover_difference(
    generator: np.random.Generator, pair: Sequence[Beta], metric: str, problems: int, samples: int, draws: int
) -> float:
    """Coverage of the paired difference of a metric; equal distributions are one model with two seeds."""
    chances, values = joint_outcomes(pair, samples), values_of(metric, samples)
    differences = values - values[:, np.newaxis]
    mean, *moments = draw_moments(generator, chances, differences, problems, draws)
    reach = errors_of(problems, add_unseen(*moments)) * stats.t.ppf(0.975, problems - 1)
    return _share_inside(mean - reach, mean + reach, float((chances * differences).sum()))


def cover_recovery(
    generator: np.random.Generator, trio: Sequence[Beta], metric: str, problems: int, draws: int
) -> tuple[float, float]:
    """Coverage of Recovery where it is given, and the share of draws where it is."""
    chances, values = joint_outcomes(trio, 8), values_of(metric, 8)
    base, guided, reference = (float(joint_outcomes([beta], 8) @ values) for beta in trio)
    true = (guided - base) / (reference - base)
    given = hits = 0
    for counts in generator.multinomial(problems, chances.ravel() / chances.sum(), draws):
        places = np.unravel_index(np.repeat(np.arange(chances.size), counts), chances.shape)
        b, g, r = (values[place] for place in places)
        found = measure_recovery([np.array([g, b, r])])
        if found is not None:
            given += 1
            hits += found.low <= true <= found.high
    return (hits / given if given else float("nan")), given / draws


def cover_share(generator: np.random.Generator, share: float, problems: int, draws: int) -> float:
    """Coverage of the mean of a metric that is 0 or 1, as Pass@8 and Maj@8, where its true value is `share`."""
    mean = generator.binomial(problems, share, draws) / problems
    return _share_inside(*bounds_of(problems, mean, problems * mean * (1 - mean)), share)


def cover_solved(generator: np.random.Generator, share: float, problems: int, samples: int, draws: int) -> float:
    """Coverage of Acc where half of it is from problems that are always solved, and the others hardly ever are."""
    always = generator.binomial(problems, share / 2, draws)
    rare = stats.binom(samples, share / 2 / (1 - share / 2)).pmf(np.arange(samples + 1))
    counts = generator.multinomial(problems - always, rare)
    counts[:, -1] += always
    values = np.arange(samples + 1) / samples
    mean = counts @ values / problems
    return _share_inside(*bounds_of(problems, mean, np.maximum(counts @ values**2 - problems * mean**2, 0)), share)


class Worlds(NamedTuple):
    """Of paired differences the lowest coverages in three worlds, the most errors of one side, and how wide they are.

    `alike`: nothing changed, or the log-odds of all problems fall alike. `lost`: some problems fall from always to never solved.
    `won`: some rise so, and all others are a little worse, so that the mean stays. `alarms`: a drop is found in `won`. `passes`:
    in `lost`, a limit just below the true drop is kept. Where nothing changed: the largest `width` over that of Student's t
    alone, and over the `least` of any rule that covers 92 % in `lost`, where no loss was drawn in 8 % of draws.
    """

    alike: float
    lost: float
    won: float
    alarms: float
    passes: float
    width: float
    least: float


def cover_worlds(generator: np.random.Generator, problems: int, samples: int, draws: int) -> Worlds:
    """Over the chances of `NOISE` and numbers of whole problems up to a quarter of them."""
    shape, widths, found = (draws, problems), list[Sequence[float]](), list[tuple[str, Array, Array, float]]()

    def keep(world: str, differences: Array, true: float) -> None:
        mean, reach = differences.mean(axis=1), find_errors(differences) * stats.t.ppf(0.975, problems - 1)
        found.append((world, mean - reach, mean + reach, true))

    for beta in NOISE:
        chances = np.clip(generator.beta(*beta, shape), 1e-9, 1 - 1e-9)
        old, new = (generator.binomial(samples, chances) / samples for _ in range(2))
        keep("alike", new - old, 0.0)
        own = (found[-1][2] - found[-1][1]).mean() / 2
        student = stats.t.ppf(0.975, problems - 1) * (new - old).std(axis=1, ddof=1).mean() / problems**0.5
        widths.append((own / student, own / max(student, 1 - 0.08 ** (1 / problems))))
        all_chances = np.clip(stats.beta(*beta).ppf((np.arange(2000) + 0.5) / 2000), 1e-9, 1 - 1e-9)
        drop = float((all_chances - expit(logit(all_chances) - SHIFT)).mean())
        keep("alike", generator.binomial(samples, expit(logit(chances) - SHIFT)) / samples - old, -drop)
        for share in (whole / problems for whole in WHOLE if whole / problems <= 0.25):
            is_whole = generator.random(shape) < share
            keep("lost", np.where(is_whole, -1.0, new - old), -share)
            worse = share / (1 - share) / stats.beta(*beta).mean()  # by this part of its chance is each other problem
            if worse < 0.6:
                others = generator.binomial(samples, chances * (1 - worse)) / samples - old
                keep("won", np.where(is_whole, 1.0, others), 0.0)
    alike, lost, won = (
        min(_share_inside(*each[1:]) for each in found if each[0] == world) for world in ("alike", "lost", "won")
    )
    alarms = max(float((high < true).mean()) for name, _, high, true in found if name == "won")
    passes = max(float((low > true).mean()) for name, low, _, true in found if name == "lost")
    width, least = (max(each) for each in zip(*widths, strict=True))
    return Worlds(alike, lost, won, alarms, passes, width, least)


def _share_inside(low: Array, high: Array, true: float) -> float:
    return float(((low <= true + 1e-9) & (true - 1e-9 <= high)).mean())


def print_line(name: str, problems: int, samples: int, found: Sequence[float]) -> None:
    inside, beyond = np.mean([0.92 <= share <= 0.99 for share in found]), np.mean([share > 0.99 for share in found])
    print(
        f"| {name} | {problems} | {samples} | {len(found)} | {np.mean(found):.1%} | {min(found):.1%} | {max(found):.1%} "
        f"| {inside:.0%} | {beyond:.0%} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20_000)
    draws = parser.parse_args().draws
    generator = np.random.default_rng(0)
    cells = table3()
    tasks = sorted({task for _, task in cells})

    def list_cells(rows: Sequence[Sequence[int]]) -> list[list[Beta]]:
        return [[cells[r, t] for r in row] for row in rows for t in tasks if {(r, t) for r in row} <= cells.keys()]

    pairs, trios = list_cells(PAIRS), list_cells(TRIOS)
    print("| interval of | problems | samples | cells | mean | lowest | highest | within 92-99 % | above 99 % |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for metric in METRICS:
        name = metric.capitalize()
        for problems in SIZES:
            for samples in (8, 1) if metric == "acc" else (8,):
                how = problems, samples, draws
                alone = [cover_mean(generator, beta, metric, *how) for beta in cells.values()]
                print_line(name, problems, samples, alone)
                apart = [cover_difference(generator, pair, metric, *how) for pair in pairs]
                print_line(f"difference of {name}", problems, samples, apart)
                same = [cover_difference(generator, [beta, beta], metric, *how) for beta in cells.values()]
                print_line(f"difference of {name}, one model twice", problems, samples, same)
            if metric != "maj@8" and problems in (30, 100, 500):
                found = [cover_recovery(generator, trio, metric, problems, draws // TRIO_DRAWS) for trio in trios]
                shown = [coverage for coverage, given in found if given > 0.5]
                print_line(f"Recovery of {name}, where it is mostly given", problems, 8, shown)
    print("\n| difference of Acc near 0 and 1 | samples | lowest | true Acc, agreement | one model twice, lowest |")
    print("|--:|--:|--:|---|--:|")
    for problems in SIZES:
        for samples in SAMPLES:
            how = problems, samples, max(1000, draws // problems)
            edges = {(*e, a): cover_edge(generator, e, a, *how) for e in EDGES for a in AGREEMENTS}
            worst = min(edges, key=lambda cell: edges[cell])
            twice = min(cover_edge(generator, (mean, mean), a, *how) for mean in ALIKE for a in AGREEMENTS)
            where = f"{worst[0]:.1%} to {worst[1]:.1%}, {worst[2]:g}"
            print(f"| {problems} | {samples} | {edges[worst]:.1%} | {where} | {twice:.1%} |", flush=True)
    print("\n| problems | samples | all alike | whole lost | whole won | alarms | passes | over Student's t | over the least |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for problems in (15, 30, 100, 500):
        for samples in SAMPLES:
            worlds = cover_worlds(generator, problems, samples, max(100, min(draws // 5, 50 * draws // problems)))
            row = "".join(f" {share:.1%} |" for share in worlds[:5])
            print(f"| {problems} | {samples} |{row} {worlds.width:.2f} | {worlds.least:.2f} |", flush=True)
    print("\n| Acc, half of it from problems that are always solved | 1 sample | 8 | 32 | 64 |")
    print("|--:|--:|--:|--:|--:|")
    shares = np.geomspace(0.005, 0.2, 12)
    for problems in SIZES:
        lowest = [min(cover_solved(generator, share, problems, samples, draws) for share in shares) for samples in SAMPLES]
        print(f"| {problems} |" + "".join(f" {share:.1%} |" for share in lowest), flush=True)
    print("\n| true Pass@8 or Maj@8 |" + "".join(f" {problems} problems |" for problems in SIZES))
    print("|--:|" + "--:|" * len(SIZES))
    for share in NEAR_1:
        covered = [cover_share(generator, share, problems, draws) for problems in SIZES]
        print(f"| {share:.2%} |" + "".join(f" {found:.1%} |" for found in covered))


if __name__ == "__main__":
    main()

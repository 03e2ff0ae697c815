"""How often 95 % intervals hold the true value, where it is known: means, paired differences and Recovery, simulated.

    python benchmarks/interval_coverage.py            # 10,000 draws a cell, about twelve minutes on one core
    python benchmarks/interval_coverage.py --draws 1000

Difficulties are those of the paper's Table 3 (`difficulties.py`). A line is over all cells of the table that determine one.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from difficulties import Array, Beta, draw_together, table3
from scipy import stats

from lm_eval_takeover.results.recovery import Trio, measure_recovery
from lm_eval_takeover.results.statistics import difference_errors, mean_bounds

SIZES = (30, 100, 500)
PAIRS = ((0, 1), (0, 2), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7))  # rows of Table 3: base to guided, guided to thinking
TRIOS = ((0, 1, 3), (0, 2, 3), (4, 5, 7), (4, 6, 7))  # base, guided, thinking
CHUNK = 2000  # draws at a time
TRIO_DRAWS = 10  # of Recovery, one in so many draws: its intervals are computed one by one


def cover_means(
    generator: np.random.Generator, beta: Beta, problems: int, samples: int, draws: int
) -> dict[str, float]:
    """Coverage of Acc and, of 8 samples, of Pass@8."""
    hits = {"acc": 0, "pass@8": 0}
    for size in _chunks(draws):
        correct = generator.binomial(samples, generator.beta(beta.a, beta.b, (size, problems)))
        hits["acc"] += _count_hits(mean_bounds(correct / samples), beta.mean)
        if samples == 8:
            hits["pass@8"] += _count_hits(mean_bounds((correct > 0).astype(float)), beta.pass8)
    return {metric: count / draws for metric, count in hits.items() if metric == "acc" or samples == 8}


def cover_difference(
    generator: np.random.Generator, old: Beta, new: Beta, problems: int, samples: int, draws: int
) -> float:
    """Coverage of the paired difference of Acc; equal distributions are one model with two seeds."""
    hits = 0
    for size in _chunks(draws):
        if old == new:
            before = after = generator.beta(old.a, old.b, (size, problems))
        else:
            before, after = draw_together(generator, [old, new], (size, problems))
        differences = (generator.binomial(samples, after) - generator.binomial(samples, before)) / samples
        mean = differences.mean(axis=1)
        reach = difference_errors(differences, samples) * stats.t.ppf(0.975, problems - 1)
        hits += _count_hits((mean - reach, mean + reach), new.mean - old.mean)
    return hits / draws


def cover_recovery(
    generator: np.random.Generator, betas: list[Beta], problems: int, samples: int, draws: int
) -> tuple[float, float]:
    """Coverage of Recovery of Acc where it is given, and the share of draws where it is."""
    base, guided, reference = betas
    true = (guided.mean - base.mean) / (reference.mean - base.mean)
    given = hits = 0
    probabilities = draw_together(generator, betas, (draws, problems))
    shares = [generator.binomial(samples, p) / samples for p in probabilities]
    for b, g, r in zip(*shares, strict=True):
        found = measure_recovery([Trio(g, b, r, samples)])
        if found is not None:
            given += 1
            hits += found.low <= true <= found.high
    return (hits / given if given else float("nan")), given / draws


def _chunks(draws: int) -> Iterator[int]:
    for start in range(0, draws, CHUNK):
        yield min(CHUNK, draws - start)


def _count_hits(bounds: tuple[Array, Array], true: float) -> int:
    return int(((bounds[0] <= true) & (true <= bounds[1])).sum())


def print_line(name: str, problems: int, samples: int, found: list[float]) -> None:
    inside = np.mean([0.93 <= share <= 0.97 for share in found])
    print(
        f"| {name} | {problems} | {samples} | {len(found)} | {np.mean(found):.1%} | {min(found):.1%} | {max(found):.1%} "
        f"| {inside:.0%} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000)
    draws = parser.parse_args().draws
    generator = np.random.default_rng(0)
    cells = table3()
    tasks = sorted({task for _, task in cells})
    print("| interval of | problems | samples | cells | mean | lowest | highest | cells within 93-97 % |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for problems in SIZES:
        for samples in (8, 1):
            found = [cover_means(generator, beta, problems, samples, draws) for beta in cells.values()]
            print_line("Acc", problems, samples, [each["acc"] for each in found])
            if samples == 8:
                print_line("Pass@8", problems, samples, [each["pass@8"] for each in found])
            pairs = [(cells[a, t], cells[b, t]) for a, b in PAIRS for t in tasks if {(a, t), (b, t)} <= cells.keys()]
            changes = [cover_difference(generator, *pair, problems, samples, draws) for pair in pairs]
            print_line("difference of Acc", problems, samples, changes)
            same = [cover_difference(generator, beta, beta, problems, samples, draws) for beta in cells.values()]
            print_line("difference of Acc, one model twice", problems, samples, same)
        trios = [
            [cells[place, t] for place in trio]
            for trio in TRIOS
            for t in tasks
            if {(p, t) for p in trio} <= cells.keys()
        ]
        recoveries = [cover_recovery(generator, trio, problems, 8, draws // TRIO_DRAWS) for trio in trios]
        shown = [coverage for coverage, given in recoveries if given > 0.5]
        print_line("Recovery of Acc, where it is mostly given", problems, 8, shown)


if __name__ == "__main__":
    main()

"""Do intervals of mean effects hold? Share of simulated experiments whose 95 % interval has the true mean.

    python benchmarks/effect_intervals.py

A problem has its own mean effect, its positions scatter around that, and a position's effect is seen through K continuations
behind either token. `no effect`: either token is as likely to end correctly, as at a control where nothing hangs on the token.
"""

import numpy as np

from lm_eval_takeover.analysis.effects import nested_mean

RUNS = 1000
CELLS = [(problems, positions) for problems in (10, 30, 100) for positions in (1, 4, 12)]


def simulate(
    rng: np.random.Generator, problems: int, positions: int, count: int, strength: float
) -> tuple[float, float]:
    """`(coverage, mean half-width)` over RUNS experiments, of so many positions a problem on average."""
    covered, widths = 0, 0.0
    for _ in range(RUNS):
        sizes = 1 + rng.poisson(positions - 1, problems) if positions > 1 else np.ones(problems, dtype=int)
        owner = np.repeat(np.arange(problems), sizes)
        level = rng.beta(0.6, 0.6, problems)[owner]  # how likely the host's token ends correctly
        gain = strength * rng.beta(0.5, 0.5, problems)[owner] * rng.beta(0.5, 0.5, len(owner))
        right = rng.binomial(count, np.clip(level + gain * (1 - level), 0, 1)) - rng.binomial(count, level)
        truth = strength * 0.5 * 0.5 * 0.5  # of independent beta means; sizes do not hang on effects
        found = nested_mean(right / count, owner, count)
        covered += found.low <= truth <= found.high
        widths += (found.high - found.low) / 2
    return covered / RUNS, widths / RUNS


def main() -> None:
    print("| true mean | problems | positions a problem | coverage | ± points |\n|---|--:|--:|--:|--:|")
    for strength in (0.0, 0.4, 1.0):
        for problems, positions in CELLS:
            generator = np.random.default_rng([problems, positions, int(10 * strength)])
            coverage, width = simulate(generator, problems, positions, 8, strength)
            print(f"| {strength / 8:.3f} | {problems} | {positions} | {coverage:.1%} | {100 * width:.1f} |")


if __name__ == "__main__":
    main()

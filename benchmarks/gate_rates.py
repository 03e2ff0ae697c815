"""How often `regress` alarms where nothing changed, and how often it finds a drop that was planted, beside what `--plan` says.

    python benchmarks/gate_rates.py            # 1,000 comparisons a line, about eight minutes on one core

The baseline and every run are simulated with the difficulties of the paper's Table 3 (`difficulties.py`), and go through the
gate as real ones do. The reference is a gate whose relative limit is compared with the point estimate.
"""

import argparse

import numpy as np
from difficulties import Beta, table3

from lm_eval_takeover.commands.regress.baseline import Measured, Side
from lm_eval_takeover.commands.regress.gate import Limit, compare
from lm_eval_takeover.commands.regress.planning import EXPECTED, lower, plan
from lm_eval_takeover.results.problems import Problems
from lm_eval_takeover.results.statistics import Values, as_values

SAMPLES = 8
SIZES = {"AIME24": 30, "AMC23": 40, "Math500": 500}
ROW = 2  # of Table 3: Qwen3-0.6B guided at the larger budget
DROPS = (0.02, 0.05, 0.10)
RELATIVE = Limit(0.05, relative=True)
NONE = Limit(0.0)
PLANS = 10  # baselines that a plan is averaged over


def measure(generator: np.random.Generator, probabilities: Values, name: str, task: str) -> Measured:
    """A run on problems of these probabilities."""
    correct = generator.binomial(SAMPLES, probabilities)
    values = {"acc": correct / SAMPLES, "pass@8": as_values(correct > 0), "maj@8": as_values(correct > SAMPLES / 2)}
    ids = tuple(map(str, range(len(correct))))
    return Measured("simulated", {}, {}, {task: Side(Problems(ids, SAMPLES, values, texts=name), None, {})})


def rate_alarms(
    generator: np.random.Generator, beta: Beta, task: str, drop: float, limit: Limit, comparisons: int
) -> tuple[float, float]:
    """The share of comparisons that find `regressed`, and the share of those in which the point estimate is beyond the limit."""
    alarms = points = 0
    for _ in range(comparisons):
        before = np.clip(generator.beta(beta.a, beta.b, SIZES[task]), 1e-9, 1 - 1e-9)
        after = lower(before[np.newaxis], drop, EXPECTED["acc"])[0] if drop else before
        old, new = measure(generator, before, "old", task), measure(generator, after, "new", task)
        found = compare(old, new, "acc", limit, 0.95)[task]
        alarms += found.verdict == "regressed"
        allowed = limit.amount * found.baseline if limit.relative else limit.amount
        points += found.now < found.baseline - allowed
    return alarms / comparisons, points / comparisons


def plan_power(generator: np.random.Generator, beta: Beta, task: str, drop: float, limit: Limit) -> float:
    """The power that `--plan` prints, as a mean over baselines."""
    found = []
    for _ in range(PLANS):
        baseline = measure(generator, generator.beta(beta.a, beta.b, SIZES[task]), "", task)
        found.append(plan(baseline, "acc", limit, 0.95, [drop], SAMPLES)[0]["power"])
    return float(np.mean(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=1000)
    comparisons = parser.parse_args().comparisons
    generator = np.random.default_rng(0)
    cells = table3()
    print("| task | problems | limit | planted drop | alarms | planned | point estimate beyond the limit |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for task, problems in SIZES.items():
        beta = cells[ROW, task]
        for limit, drops in ((RELATIVE, (0.0,)), (NONE, (0.0, *DROPS)), (Limit(0.02), (0.05, 0.10))):
            for drop in drops:
                alarms, points = rate_alarms(generator, beta, task, drop, limit, comparisons)
                planned = f"{plan_power(generator, beta, task, drop, limit):.1%}" if drop else "-"
                print(
                    f"| {task} | {problems} | {limit} | {drop:g} | {alarms:.1%} | {planned} | {points:.1%} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

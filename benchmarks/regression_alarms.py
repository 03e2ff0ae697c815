"""How often `regress` alarms where nothing changed, and how often it finds a drop that was planted, beside what `--plan` says.

    python benchmarks/regression_alarms.py            # about two minutes on one core

Baselines and runs are simulated with the difficulties of the paper's Table 3 (`difficulties.py`); tests show that their
verdicts are those of `regress`. The reference is a check that compares the point estimate with the limit. The second table is of
runs without a change: a baseline is frozen, so its own luck is in every comparison with it.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from difficulties import Beta, table3

from lm_eval_takeover.commands.regress.planning import Design, draw_scores, lower, plan
from lm_eval_takeover.commands.regress.verdicts import AVERAGE, weigh
from lm_eval_takeover.results.files import Run, TaskResult
from lm_eval_takeover.results.problems import Problems
from lm_eval_takeover.results.statistics import Values, as_values, average_differences, holm

SAMPLES = 8
SIZES = {"AIME24": 30, "AMC23": 40, "Math500": 500}
PAPER = {"AIME24": 30, "AIME25": 30, "AMC23": 40, "Math500": 100, "GSM8K": 100, "Olympiad": 100}  # problems in Table 3
ROW = 2  # of Table 3: Qwen3-0.6B guided at the larger budget
DROPS = (0.02, 0.05, 0.10)
CONFIDENCE = 0.95
RUNS = 30  # against one baseline
PLANS = 5  # baselines that a plan is averaged over


def make_run(tasks: Mapping[str, Problems]) -> Run:
    """A run of these problems by task."""
    results = {task: TaskResult.of(task, problems, {}) for task, problems in tasks.items()}
    return Run(Path(), "simulated", "other", {}, {}, {}, results, None)


def measure(generator: np.random.Generator, probabilities: Values, name: str, task: str) -> Run:
    """A run on problems of these probabilities."""
    correct = generator.binomial(SAMPLES, probabilities)
    values = {"acc": correct / SAMPLES, "pass@8": as_values(correct > 0), "maj@8": as_values(correct > SAMPLES / 2)}
    ids = tuple(map(str, range(len(correct))))
    return make_run({task: Problems(ids, SAMPLES, values, texts=name)})


def draw_chances(generator: np.random.Generator, beta: Beta, count: int, problems: int) -> Values:
    """`[count, problems]`."""
    return np.clip(generator.beta(beta.a, beta.b, (count, problems)), 1e-9, 1 - 1e-9)


def find_p_values(margins: Sequence[Values]) -> Values:
    """One-sided p-values of runs whose `margins` of Acc over the limit are by task `[runs, problems]`."""
    return as_values([average_differences(run).p_below() for run in zip(*margins, strict=True)])


def rate_alarms(
    generator: np.random.Generator, beta: Beta, task: str, drop: float, limit: float, comparisons: int
) -> tuple[float, float, float]:
    """The share of comparisons that find `regressed`, that pass, and in which the point estimate is beyond the limit."""
    design = Design(limit, CONFIDENCE, SAMPLES)
    before = draw_chances(generator, beta, comparisons, SIZES[task])
    after = lower(before, drop) if drop else before
    old, new = (draw_scores(generator, chances, SAMPLES) for chances in (before, after))
    p, beyond = find_p_values([new - old + limit]), (new - old + limit).mean(axis=1) < 0
    return tuple(float(found.mean()) for found in (p <= design.level, p >= 1 - design.level, beyond))  # type: ignore[return-value]


def plan_power(generator: np.random.Generator, beta: Beta, task: str, drop: float, limit: float) -> float:
    """The power that `--plan` prints, as a mean over baselines."""
    found = []
    for _ in range(PLANS):
        baseline = measure(generator, draw_chances(generator, beta, 1, SIZES[task])[0], "", task)
        found.append(plan(baseline, Design(limit, CONFIDENCE), [drop])[0].power or 0.0)
    return float(np.mean(found))


def find_one_drop(
    generator: np.random.Generator, tasks: Sequence[tuple[str, Beta, int]], task: str, drop: float, samples: int, runs: int
) -> tuple[float, float]:
    """Where this task alone drops among several, at the default limit: the power that `--plan` prints, and how often it is so."""
    design, baseline, p_values = Design(0.02, CONFIDENCE, samples), [], []
    groups = [*(name for name, *_ in tasks), AVERAGE]
    for _ in range(PLANS):
        measured = [measure(generator, draw_chances(generator, beta, 1, n)[0], "", name) for name, beta, n in tasks]
        baseline.append(make_run({name: side.problems for one in measured for name, side in one.tasks.items()}))
    planned = [row.power for one in baseline for row in plan(one, design, [drop]) if row.task == task]
    for _ in range(runs):
        margins = []
        for name, beta, n in tasks:
            before = draw_chances(generator, beta, 1, n)
            after = lower(before, drop) if name == task else before
            margins.append((draw_scores(generator, after, samples) - draw_scores(generator, before, samples))[0] + design.limit)
        p_values.append([average_differences(of_group).p_below() for of_group in ([each] for each in margins)])
        p_values[-1].append(average_differences(margins).p_below())
    found = [holm(each, weigh(groups))[groups.index(task)] <= design.level for each in p_values]
    return float(np.mean([power or 0.0 for power in planned])), float(np.mean(found))


def simulate_quiet(generator: np.random.Generator, difficulties: Sequence[Values], design: Design, runs: int) -> Values:
    """p-values `[baselines, runs]` of runs without a change; `difficulties` of each task are `[baselines, problems]`."""
    found = []
    for chances in zip(*difficulties, strict=True):
        parts = []
        for each in chances:
            old = draw_scores(generator, each[np.newaxis], SAMPLES)
            new = draw_scores(generator, np.broadcast_to(each, (runs, len(each))), SAMPLES)
            parts.append(new - old + design.limit)
        found.append(find_p_values(parts))
    return np.stack(found)


def rate_quiet(generator: np.random.Generator, cells: Sequence[tuple[Beta, int]], limit: float, baselines: int) -> list[float]:
    """Without a change: passes, alarms, alarms of the unluckiest 5 % of baselines, any of 30."""
    design = Design(limit, CONFIDENCE, SAMPLES)
    difficulties = [draw_chances(generator, beta, baselines, problems) for beta, problems in cells]
    found = simulate_quiet(generator, difficulties, design, RUNS)
    alarms = found <= design.level
    each = np.quantile(alarms.mean(axis=1), 0.95)
    rates = (found >= 1 - design.level).mean(), alarms.mean(), each, alarms.any(axis=1).mean()
    return [float(rate) for rate in rates]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=10_000)
    parser.add_argument("--baselines", type=int, default=1000, help="of the second table")
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    cells = table3()
    print("| task | problems | limit | planted drop | alarms | planned | passes | point estimate beyond the limit |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for task, problems in SIZES.items():
        beta = cells[ROW, task]
        for limit, drops in ((0.0, (0.0, *DROPS)), (0.02, (0.0, 0.05, 0.10))):
            for drop in drops:
                alarms, passes, points = rate_alarms(generator, beta, task, drop, limit, options.comparisons)
                planned = f"{plan_power(generator, beta, task, drop, limit):.1%}" if drop else "-"
                shown = f"{alarms:.1%} | {planned} | {passes:.1%} | {points:.1%}"
                print(f"| {task} | {problems} | {limit:g} | {drop:g} | {shown} |", flush=True)
    print("\n| one of six tasks drops by 0.1, limit 0.02 | samples | planned | found |\n|---|--:|--:|--:|")
    tasks = [(task, cells[ROW, task], count) for task, count in PAPER.items() if (ROW, task) in cells]
    for (task, _, problems), samples in product(tasks, (SAMPLES, 1)):
        chances = find_one_drop(generator, tasks, task, 0.1, samples, max(200, options.comparisons // 10))
        print(f"| {task}, {problems} problems | {samples} | {chances[0]:.1%} | {chances[1]:.1%} |", flush=True)
    print()
    print(f"| no change | problems | limit | passes | alarms | unlucky 5 % | any of {RUNS} |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    named = {task: [(cells[ROW, task], count)] for task, count in PAPER.items() if (ROW, task) in cells}
    named |= {"average": [pair for (pair,) in named.values()]}
    for name, pairs in named.items():
        for limit in (0.0, 0.02):
            rates = rate_quiet(generator, pairs, limit, options.baselines)
            shown = " | ".join(f"{rate:.1%}" for rate in rates)
            print(f"| {name} | {sum(n for _, n in pairs)} | {limit:g} | {shown} |", flush=True)


if __name__ == "__main__":
    main()

"""False alarms and power of CI gates on the same simulated runs, where the truth is known.

    python benchmarks/gates.py                      # about a minute on one core
    python benchmarks/gates.py --svg docs/images/gates.svg

A baseline and later runs have 8 samples of each problem. How hard the problems are is drawn from the paper's Table 3
(`difficulties.py`). A drop shifts all log-odds by one amount. Every gate sees the same samples, so all gates cost the same. One
baseline is kept for 30 runs, as in a CI. The runs are simulated. The rules of other projects are written here as their sources
state them; their code was not run. Two more tables: greedy runs, judged by the exact test of changed answers; and what vLLM's
rules find by exact binomials, of one greedy run of 250 problems against a published value.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from difficulties import table3
from numpy.typing import NDArray
from regression_alarms import CONFIDENCE, ROW, RUNS, SAMPLES, draw_chances, find_p_values
from scipy import stats

from lm_eval_takeover.commands.regress.planning import lower
from lm_eval_takeover.commands.regress.verdicts import judge_fixed
from lm_eval_takeover.results.statistics import Values, as_values

TASKS = {"AIME24": 30, "AMC23": 40, "Math500": 100, "GSM8K": 500}
DROPS = (0.02, 0.05, 0.10)
Alarms = NDArray[np.bool_]
Gate = Callable[[Values, Values], Alarms]  # correct samples [runs, problems] of baseline and run: whether it alarms


def mean(correct: Values) -> Values:
    return np.asarray(correct.mean(axis=1) / SAMPLES)


def fixed(old: Values, new: Values) -> Alarms:
    """The point estimate is more than 2 points below the baseline's."""
    return np.asarray(mean(new) < mean(old) - 0.02)


def relative(old: Values, new: Values) -> Alarms:
    """vLLM's lm-eval tests: more than 8 % of the baseline below it."""
    return np.asarray(mean(new) < 0.92 * mean(old))


def absolute(tolerance: float) -> Gate:
    """More than so many points below the baseline: 5 in SGLang's tests, 8 in vLLM's `tests/evals/gsm8k`."""
    return lambda old, new: np.asarray(mean(new) < mean(old) - tolerance)


def bound(share: Values, count: int) -> Values:
    """Wilson's one-sided lower bound at 95 %."""
    z = stats.norm.ppf(0.95)
    reach = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return np.asarray((share + z**2 / (2 * count) - reach) / (1 + z**2 / count))


def wilson(old: Values, new: Values) -> Alarms:
    """vLLM's `gate: ci`: Wilson's lower bound must clear the same band. Samples of one problem count as independent."""
    return np.asarray(bound(mean(new), new.shape[1] * SAMPLES) < 0.92 * mean(old))


def standard_errors(old: Values, new: Values) -> Alarms:
    """lm-eval's standard errors of both runs (over problems), a two-sided 95 % interval, unpaired."""
    errors = [runs.std(axis=1, ddof=1) / SAMPLES / np.sqrt(runs.shape[1]) for runs in (old, new)]
    reach = stats.norm.ppf((1 + CONFIDENCE) / 2) * np.hypot(*errors)
    return np.asarray(mean(new) + reach < mean(old))


def regress(limit: float) -> Gate:
    """`lm-eval-takeover regress --max_drop LIMIT`."""

    def gate(old: Values, new: Values) -> Alarms:
        return np.asarray(find_p_values([(new - old) / SAMPLES + limit]) <= (1 - CONFIDENCE) / 2)

    return gate


def mcnemar(lost: Values, won: Values) -> Alarms:
    """NeMo-Evaluator's `nel compare`: McNemar's exact test on pairs of (problem, repeat), one-sided at 5 %."""
    return np.asarray(stats.binom.sf(lost - 1, lost + won, 0.5) <= 0.05)


GATES: dict[str, Gate | None] = {
    "2 points, fixed": fixed,
    "vLLM: 8 % of the baseline": relative,
    "vLLM: gate ci": wilson,
    "vLLM gsm8k: 8 points": absolute(0.08),
    "SGLang: 5 points": absolute(0.05),
    "lm-eval: standard errors": standard_errors,
    "NeMo-Evaluator: McNemar": None,  # reads pairs of samples
    "regress, limit 0": regress(0.0),
    "regress, limit 0.02": regress(0.02),
}


CHURN = 0.02  # the share of greedy answers whose verdict another batch shape or kernel changes, either way alike


def rate_changed(generator: np.random.Generator, problems: int, drop: float, runs: int) -> tuple[float, float, float]:
    """How often greedy runs with this drop alarm: by the exact test of `--max_changed 0`, by `regress` at limit 0 and at 0.02."""
    # Four of five answers are right. Of these a share is lost; besides, as many are won as lost by chance.
    right, won = generator.random((runs, problems)) < 0.8, generator.random((runs, problems))
    new = np.where(right, won >= (CHURN / 2 + drop) / 0.8, won < CHURN / 2 / 0.2)
    lost, gained = (right & ~new).sum(axis=1), (new & ~right).sum(axis=1)
    exact = stats.binom.sf(lost - 1, lost + gained, 0.5) <= 1 - CONFIDENCE
    differences = new.astype(float) - right
    alarms = [find_p_values([differences + limit]) <= (1 - CONFIDENCE) / 2 for limit in (0.0, 0.02)]
    return float(exact.mean()), float(alarms[0].mean()), float(alarms[1].mean())


def simulate(generator: np.random.Generator, task: str, drop: float, baselines: int) -> dict[str, Alarms]:
    """By gate which runs alarm: `[baselines, RUNS]`."""
    before = draw_chances(generator, table3()[ROW, task], baselines, TASKS[task])
    after = lower(before, drop) if drop else before
    old = generator.random((*before.shape, SAMPLES)) < before[..., np.newaxis]
    alarms: dict[str, list[Alarms]] = {name: [] for name in GATES}
    for _ in range(RUNS):
        new = generator.random((*after.shape, SAMPLES)) < after[..., np.newaxis]
        lost, won = (old & ~new).sum(axis=(1, 2)), (new & ~old).sum(axis=(1, 2))
        for name, gate in GATES.items():
            correct = old.sum(axis=2).astype(float), new.sum(axis=2).astype(float)
            alarms[name].append(gate(*correct) if gate else mcnemar(lost, won))
    return {name: np.stack(each, axis=1) for name, each in alarms.items()}


def measure(baselines: int) -> dict[tuple[str, str], list[float]]:
    """By task and gate: alarms of a run, of any of 30 runs, and the power at each drop."""
    generator = np.random.default_rng(0)
    rates: dict[tuple[str, str], list[float]] = {}
    for task in TASKS:
        quiet = simulate(generator, task, 0.0, baselines)
        dropped = [simulate(generator, task, drop, baselines) for drop in DROPS]
        for name, alarms in quiet.items():
            power = [float(each[name].mean()) for each in dropped]
            rates[task, name] = [float(alarms.mean()), float(alarms.any(axis=1).mean()), *power]
    return rates


def draw(rates: dict[tuple[str, str], list[float]], path: Path) -> None:
    """Power at 5 points against false alarms in 30 runs: a panel for each task."""
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lm_eval_takeover.lab.extra import draw_svg
    from lm_eval_takeover.storage.files import write_text

    def paint(figure: Figure) -> None:
        panels: list[Axes] = list(figure.subplots(1, len(TASKS), sharex=True, sharey=True))
        for panel, (task, problems) in zip(panels, TASKS.items(), strict=True):
            for number, name in enumerate(GATES):
                _, any_run, _, power, _ = rates[task, name]
                panel.plot(any_run, power, "oDsv<>^P*X"[number], label=name, markersize=7)
            panel.set(title=f"{task}, {problems} problems", xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
            panel.set_xlabel("False alarm in 30 runs")
        panels[0].set_ylabel("Finds a drop of 5 points")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)

    write_text(path, draw_svg(paint, (10.0, 3.6)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baselines", type=int, default=400)
    parser.add_argument("--svg", type=Path, help="draw the picture into this file")
    options = parser.parse_args()
    rates = measure(options.baselines)
    print("| task | problems | gate | false alarm | in 30 runs | finds 2 points | 5 points | 10 points |")
    print("|---|--:|---|--:|--:|--:|--:|--:|")
    for (task, name), shares in rates.items():
        print(f"| {task} | {TASKS[task]} | {name} | {' | '.join(f'{rate:.1%}' for rate in shares)} |")
    print("\n| greedy problems | drop | regress --max_changed 0 | regress, limit 0 | regress, limit 0.02 |")
    print("|--:|--:|--:|--:|--:|")
    generator = np.random.default_rng(0)
    for problems in (40, 100, 500):
        for drop in (0.0, *DROPS):
            alarms = rate_changed(generator, problems, drop, 50 * options.baselines)
            print(f"| {problems} | {drop:g} | {' | '.join(f'{share:.1%}' for share in alarms)} |")
    print("\n| rule, 0.756 on 250 problems | unchanged runs fail | 2 points | 5 points | 10 points |")
    print("|---|--:|--:|--:|--:|")
    right = np.arange(251)
    rules: dict[str, Any] = {
        "vLLM: rtol 0.08": right / 250 < 0.92 * 0.756,
        "vLLM: gate ci, rtol 0.08": bound(right / 250, 250) < 0.92 * 0.756,
        "vLLM gsm8k: 8 points": right / 250 < 0.676,
        "SGLang: 5 points": right / 250 < 0.706,
    }
    fixed_limits = {f"regress, limit {limit:g}": limit for limit in (0.0, 0.02)}
    for name, limit in fixed_limits.items():
        runs = (judge_fixed("", as_values(np.arange(250) < x), 0.756, limit, CONFIDENCE, ()) for x in right)
        rules[name] = as_values([run.verdict == "regressed" for run in runs])
    for name, fails in rules.items():
        found = (float(stats.binom.pmf(right, 250, 0.756 - drop) @ np.asarray(fails)) for drop in (0.0, *DROPS))
        print(f"| {name} | {' | '.join(f'{share:.1%}' for share in found)} |")
    if options.svg:
        draw(rates, options.svg)


if __name__ == "__main__":
    main()

"""False alarms and power of CI gates on the same simulated runs, where the truth is known.

    python benchmarks/gates.py                      # about a minute on one core
    python benchmarks/gates.py --svg docs/images/gates.svg

A baseline and later runs have 8 samples of each problem. How hard the problems are is drawn from the paper's Table 3
(`difficulties.py`). A drop shifts all log-odds by one amount. Every gate sees the same samples, so all gates cost the same. One
baseline is kept for 30 runs, as in a CI. The runs are simulated. The rules of other projects are written here from their own
descriptions; their code was not run.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from difficulties import table3
from numpy.typing import NDArray
from regression_alarms import CONFIDENCE, ROW, RUNS, SAMPLES, draw_chances, find_level, find_p_values
from scipy import stats

from lm_eval_takeover.commands.regress.verdicts import EXPECTED, Design, lower
from lm_eval_takeover.results.statistics import Values

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


def wilson(old: Values, new: Values) -> Alarms:
    """vLLM PR 44704: Wilson's lower bound must clear the same band. Samples of one problem count as independent."""
    z, count, share = stats.norm.ppf((1 + CONFIDENCE) / 2), new.shape[1] * SAMPLES, mean(new)
    centre = share + z**2 / (2 * count)
    reach = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return np.asarray((centre - reach) / (1 + z**2 / count) < 0.92 * mean(old))


def standard_errors(old: Values, new: Values) -> Alarms:
    """lm-eval's standard errors of both runs (over problems), a two-sided 95 % interval, unpaired."""
    errors = [runs.std(axis=1, ddof=1) / SAMPLES / np.sqrt(runs.shape[1]) for runs in (old, new)]
    reach = stats.norm.ppf((1 + CONFIDENCE) / 2) * np.hypot(*errors)
    return np.asarray(mean(new) + reach < mean(old))


def regress(limit: float, runs: int = 1) -> Gate:
    """`lm-eval-takeover regress --max_drop LIMIT`; with several `runs` as `--history --runs RUNS`."""

    def gate(old: Values, new: Values) -> Alarms:
        return np.asarray(find_p_values([(new - old) / SAMPLES + limit]) <= level)

    design = Design("acc", limit, CONFIDENCE, SAMPLES)
    level = find_level(design, runs) if runs > 1 else design.level
    return gate


def mcnemar(lost: Values, won: Values) -> Alarms:
    """NeMo-Evaluator's `nel compare`: McNemar's exact test on pairs of (problem, repeat), one-sided at 5 %."""
    return np.asarray(stats.binom.sf(lost - 1, lost + won, 0.5) <= 0.05)


GATES: dict[str, Gate | None] = {
    "2 points, fixed": fixed,
    "vLLM: 8 % of the baseline": relative,
    "vLLM PR 44704: Wilson": wilson,
    "lm-eval: standard errors": standard_errors,
    "NeMo-Evaluator: McNemar": None,  # reads pairs of samples
    "regress, limit 0": regress(0.0),
    "regress, limit 0, --history": regress(0.0, RUNS),
    "regress, limit 0.02": regress(0.02),
}


def simulate(generator: np.random.Generator, task: str, drop: float, baselines: int) -> dict[str, Alarms]:
    """By gate which runs alarm: `[baselines, RUNS]`."""
    before = draw_chances(generator, table3()[ROW, task], baselines, TASKS[task])
    after = lower(before, drop, EXPECTED["acc"]) if drop else before
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
    from lm_eval_takeover.storage.whole_files import write_text

    def paint(figure: Figure) -> None:
        panels: list[Axes] = list(figure.subplots(1, len(TASKS), sharex=True, sharey=True))
        for panel, (task, problems) in zip(panels, TASKS.items(), strict=True):
            for number, name in enumerate(GATES):
                _, any_run, _, power, _ = rates[task, name]
                panel.plot(any_run, power, "oDsv^P*X"[number], label=name, markersize=7)
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
    if options.svg:
        draw(rates, options.svg)


if __name__ == "__main__":
    main()

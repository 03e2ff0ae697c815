"""The rules of `benchmarks/gates.py` equal scipy's tests, one run at a time."""

import gates
import numpy as np
from scipy import stats


def test_rules_of_other_projects_are_the_textbook_tests():
    generator = np.random.default_rng(1)
    old, new = (generator.binomial(gates.SAMPLES, 0.6, (50, 30)).astype(float) for _ in range(2))
    new[:25] = np.maximum(new[:25] - 1, 0)
    trials = new.shape[1] * gates.SAMPLES
    for run, alarm in enumerate(gates.wilson(old, new)):
        interval = stats.binomtest(int(new[run].sum()), trials).proportion_ci(0.95, method="wilson")
        assert alarm == (interval.low < 0.92 * old[run].mean() / gates.SAMPLES)
    lost, won = generator.integers(0, 40, (2, 50))
    for run, alarm in enumerate(gates.mcnemar(lost, won)):
        count = int(lost[run] + won[run])
        assert alarm == (count > 0 and stats.binomtest(int(lost[run]), count, alternative="greater").pvalue <= 0.05)

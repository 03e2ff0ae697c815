"""Recovery: the paper's printed ones from its printed averages, and its interval over problems."""

from itertools import product

import numpy as np
import pytest
from difficulties import draw_together, table3

from lm_eval_takeover.results.published import read_tables
from lm_eval_takeover.results.recovery import Trio, measure_recovery

# By table of the averages, row of guided and of the reference there: Recovery of Acc and of Pass@8, as printed in per cent.
PRINTED = {
    ("3", 1, 3): (53, 91), ("3", 2, 3): (130, 157),  # Table 8, CE
    ("7", 1, 3): (140, 137), ("7", 2, 3): (172, 156),  # Table 8, reverse KL
    ("11", 3, 4): (None, 91),  # section 5.2 and appendix C.5: LLaMA, against the guide
}  # fmt: skip


def test_printed_recoveries_lie_in_what_averages_printed_to_a_tenth_allow():
    for (table, *rows), recoveries in PRINTED.items():
        cells = [read_tables()[table]["rows"][row][7].split(" / ") for row in (rows[0], 0, rows[1])]
        for printed, percent in zip(zip(*cells, strict=True), recoveries, strict=True):
            corners = product(*((float(cell) - 0.05, float(cell) + 0.05) for cell in printed))
            values = [100 * (g - b) / (r - b) for g, b, r in corners]
            assert percent is None or min(values) - 0.5 <= percent <= max(values) + 0.5, (table, rows)


def test_the_interval_is_fiellers_and_holds_the_true_recovery_as_often_as_it_says():
    cells = table3()
    betas = [cells[row, "GSM8K"] for row in (0, 1, 3)]
    true = (betas[1].mean - betas[0].mean) / (betas[2].mean - betas[0].mean)
    generator = np.random.default_rng(0)
    shares = [generator.binomial(8, chances) / 8 for chances in draw_together(generator, betas, (600, 100))]
    found = [measure_recovery([Trio(g, b, r, 8)]) for b, g, r in zip(*shares, strict=True)]
    assert all(found)
    assert 0.92 <= np.mean([each.low <= true <= each.high for each in found]) <= 0.98


def test_two_tasks_weigh_the_same_whatever_their_sizes():
    def trio(count):
        base, half, full = np.zeros(count), np.full(count, 0.5), np.ones(count)
        return Trio(half, base, full, 8)

    weighted = measure_recovery([trio(30), Trio(np.ones(500), np.zeros(500), np.ones(500), 8)])
    assert weighted.value == pytest.approx(0.75)


def test_there_is_none_where_the_reference_is_not_above_the_base_beyond_noise():
    generator = np.random.default_rng(1)
    base, guided, same = (generator.binomial(8, 0.3, 30) / 8 for _ in range(3))
    assert measure_recovery([Trio(guided, base, same, 8)]) is None
    assert measure_recovery([Trio(guided, base, np.clip(base - 0.3, 0, 1), 8)]) is None

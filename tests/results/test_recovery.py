"""Recovery: the paper's printed ones from its printed averages, and its interval over problems."""

from itertools import product

import numpy as np
import pytest
from difficulties import draw_together, table3

from lm_eval_takeover.results.published import read_tables
from lm_eval_takeover.results.recovery import Trio, measure_recovery

# Table of the averages, row of guided, of base and of reference there, metric (0 Acc, 1 Pass@8), Recovery as printed in per cent.
PRINTED = [
    ("3", 1, 0, 3, 0, 53),  # Table 8, CE
    ("3", 1, 0, 3, 1, 91),
    ("3", 2, 0, 3, 0, 130),
    ("3", 2, 0, 3, 1, 157),
    ("7", 1, 0, 3, 0, 140),  # Table 8, reverse KL
    ("7", 1, 0, 3, 1, 137),
    ("7", 2, 0, 3, 0, 172),
    ("7", 2, 0, 3, 1, 156),
    ("11", 3, 0, 4, 1, 91),  # section 5.2 and appendix C.5: LLaMA, against the guide
]


def recovery_range(guided, base, reference):
    """The lowest and highest Recovery that figures printed to a tenth can stand for."""
    corners = product(*((value - 0.05, value + 0.05) for value in (guided, base, reference)))
    values = [(g - b) / (r - b) for g, b, r in corners]
    return min(values), max(values)


def averages(table, row):
    return [float(cell) for cell in read_tables()[table]["rows"][row][7].split(" / ")]


@pytest.mark.parametrize(("table", "guided", "base", "reference", "metric", "percent"), PRINTED)
def test_printed_recoveries_lie_in_what_the_printed_averages_allow(table, guided, base, reference, metric, percent):
    low, high = recovery_range(*(averages(table, row)[metric] for row in (guided, base, reference)))
    assert low * 100 <= percent + 0.5 and percent - 0.5 <= high * 100


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

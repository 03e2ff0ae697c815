"""Calibrations side by side: Table 13 of the paper."""

from dataclasses import replace

import pytest
from helpers.calibrations import SCORES, calibrate_values, small_calibration

from lm_eval_takeover.calibration.files import find_calibration
from lm_eval_takeover.commands.calibrate.page import compare_calibrations, is_constant
from lm_eval_takeover.errors import CalibrationError


def lines(calibrations, **options):
    """Of the one table: the cells of each row by its name."""
    (table,) = compare_calibrations(calibrations, **options).values()
    return {name: cells for name, *cells in table.rows}


def test_compare_prints_table_13_of_the_published_file():
    rows = lines([find_calibration("qwen3-0.6b-base+qwen3-8b")[0]])
    assert rows["GSM8K"] == ["3.667 / 24.443", "0.467 / 3.114", "0.239 / 1.591", "6.657 to 6.668", "yes"]
    assert rows["largest over smallest"][:3] == ["1.296 / 1.414", "2.797 / 2.378", "2.882 / 1.835"]
    assert [cells[-1] for cells in rows.values()] == ["yes"] * 6 + [""]


def test_compare_tells_whether_kappa_over_tau_is_constant():
    made = small_calibration()
    assert lines([made])["made"][-1] == "yes"
    assert lines([made], kappa_rule="tail_to_mean")["made"][-1] == "no"
    assert not is_constant(((3.0, 20.0), (1.0, 6.5)))
    both = lines([made, replace(made, scores={"ce": calibrate_values(SCORES * 2)})])
    assert list(both) == ["made (1)", "made (2)", "largest over smallest"]
    assert both["largest over smallest"][0] == "2.000 / 1.000"
    with pytest.raises(CalibrationError, match="does not hold score=js"):
        compare_calibrations([made], score="js")

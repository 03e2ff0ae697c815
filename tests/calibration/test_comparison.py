"""Calibrations side by side: Table 13 of the paper, and survival curves."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.calibrations import SCORES

from lm_eval_takeover.calibration.comparison import Row, compare_calibrations, plot_scores
from lm_eval_takeover.calibration.files import find_calibration
from lm_eval_takeover.calibration.thresholds import ScoreCalibration
from lm_eval_takeover.errors import ArgumentError, CalibrationError


def test_compare_prints_table_13_of_the_published_file():
    published = find_calibration("qwen3-0.6b-base+qwen3-8b")[0]
    table = compare_calibrations([published])
    assert "|GSM8K|3.667 / 24.443|0.467 / 3.114|0.239 / 1.591|6.657 to 6.668|yes|" in table
    assert "|largest over smallest|1.296 / 1.414|2.797 / 2.378|2.882 / 1.835| | |" in table
    assert table.count("|yes|") == 6


def test_compare_tells_whether_kappa_over_tau_is_constant(made):
    assert "|made|" in compare_calibrations([made])
    assert "|yes|" in compare_calibrations([made])
    assert "|no|" in compare_calibrations([made], kappa_rule="tail_to_mean")
    assert "|no|" in compare_calibrations([find_calibration("demo")[0]], score="rkl", kappa_rule="tail_to_mean")
    assert not Row("x", ((3.0, 20.0), (1.0, 6.5))).is_constant
    both = compare_calibrations([made, replace(made, scores={"ce": ScoreCalibration.of_values(SCORES * 2)})])
    assert "|made (1)|" in both
    assert "|largest over smallest|2.000 / 1.000|" in both
    with pytest.raises(CalibrationError, match="does not hold score=js"):
        compare_calibrations([made], score="js")


@pytest.mark.parametrize("suffix", ["svg", "PNG", "pdf"])
def test_the_plot_is_the_same_file_each_time(made, tmp_path, suffix):
    first, again = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    plot_scores([made], first)
    plot_scores([made], again)
    assert first.stat().st_size > 5_000
    assert first.read_bytes() == again.read_bytes()


def test_a_plot_needs_a_distribution_and_a_known_suffix(made, tmp_path):
    with pytest.raises(CalibrationError, match="published tables hold no distribution"):
        plot_scores([find_calibration("qwen3-0.6b-base+qwen3-8b")[0]], tmp_path / "a.svg")
    zero = replace(made, scores={"ce": ScoreCalibration.of_values(np.zeros(100))})
    with pytest.raises(CalibrationError, match=r"all ce scores are 0, which a logarithmic axis cannot show"):
        plot_scores([zero], tmp_path / "a.svg")
    plot_scores([made, zero], tmp_path / "a.svg")
    with pytest.raises(ArgumentError, match=r"suffix '\.gif'; expected \.svg, \.png or \.pdf"):
        plot_scores([made], tmp_path / "a.gif")

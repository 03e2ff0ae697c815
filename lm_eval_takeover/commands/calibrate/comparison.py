"""`calibrate --compare`: calibration files side by side, and survival curves of their scores."""

import argparse

from lm_eval_takeover.calibration.comparison import check_plot, compare_calibrations, plot_scores
from lm_eval_takeover.calibration.files import find_calibration
from lm_eval_takeover.calibration.thresholds import Calibration
from lm_eval_takeover.errors import ArgumentError


def print_comparison(options: argparse.Namespace) -> int:
    """Print a table per score, and draw `--plot`. Returns the exit status."""
    if options.plot:
        check_plot(options.plot)
        if len(options.score) > 1:
            raise ArgumentError(
                f"--plot draws one score, and --score names {len(options.score)}: {', '.join(options.score)}"
            )
    calibrations = [_find_whole(name) for name in options.compare]
    print("\n\n".join(compare_calibrations(calibrations, score, options.kappa_rule) for score in options.score))
    if options.plot:
        plot_scores(calibrations, options.plot, options.score[0])
        print(f"\nscores above, log-log -> {options.plot}")
    return 0


def _find_whole(name: str) -> Calibration:
    """The calibration of this name; ArgumentError where one of its columns is named."""
    calibration, column = find_calibration(name)
    if column is not None:
        raise ArgumentError(f"--compare '{name}': all columns are compared; leave out ':{column}'")
    return calibration

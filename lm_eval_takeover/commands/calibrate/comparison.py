"""`calibrate --compare`: the paper's Table 13 for any calibration files, side by side."""

import argparse
from collections.abc import Sequence

from lm_eval_takeover.calibration.files import find_calibration
from lm_eval_takeover.calibration.thresholds import KAPPA_RULES, Calibration
from lm_eval_takeover.commands._output import Table, write_terminal
from lm_eval_takeover.errors import ArgumentError

SPIKE_RATIOS = (0.005, 0.01, 0.03, 0.05, 0.1)  # the columns of measured calibrations
Cell = tuple[float, float]  # tau in nats, and kappa


def print_comparison(options: argparse.Namespace) -> int:
    """Print a table per score. Returns the exit status."""
    calibrations = [_find_whole(name) for name in options.compare]
    tables = [compare_calibrations(calibrations, score, options.kappa_rule) for score in options.score]
    print("\n".join(f"{title}\n\n{write_terminal(table)}" for part in tables for title, table in part.items()), end="")
    return 0


def _find_whole(name: str) -> Calibration:
    """The calibration of this name; ArgumentError where one of its columns is named."""
    calibration, column = find_calibration(name)
    if column is not None:
        raise ArgumentError(f"--compare '{name}': all columns are compared; leave out ':{column}'")
    return calibration


def compare_calibrations(
    calibrations: Sequence[Calibration], score: str = "ce", kappa_rule: str = KAPPA_RULES[0]
) -> dict[str, Table]:
    """By title a table of tau and kappa by calibration set, their spread, and kappa / tau."""
    tables = {}
    measured = [calibration for calibration in calibrations if calibration.source == "measured"]
    names = [calibration.name for calibration in measured]
    rows: dict[str, list[Cell]] = {}
    for number, (name, calibration) in enumerate(zip(names, measured, strict=True), 1):
        thresholds = map(calibration.score(score).threshold, SPIKE_RATIOS)
        label = name if names.count(name) == 1 else f"{name} ({number})"
        rows[label] = [(threshold.tau, threshold.kappa(kappa_rule)) for threshold in thresholds]
    if rows:
        title = f"tau (nats) / kappa of {score}, {kappa_rule}, by spike ratio"
        tables[title] = _make_table([f"{rho:.1%}" for rho in SPIKE_RATIOS], rows)
    published = [calibration for calibration in calibrations if calibration.source == "published"]
    return tables | {title: table for each in published for title, table in compare_columns(each, score).items()}


def compare_columns(calibration: Calibration, score: str) -> dict[str, Table]:
    """The same of the rows of one published table, by column."""
    rows = {
        name: [(cell["tau"], cell["kappa"]) for cell in cells]
        for name, cells in calibration.published_rows(score).items()
    }
    columns = [f"column {number + 1}" for number in range(max(map(len, rows.values())))]
    title = f"tau (nats) / kappa of {score}, '{calibration.name}' (published), by column"
    return {title: _make_table(columns, rows, rounded=True)}


def _make_table(columns: Sequence[str], rows: dict[str, list[Cell]], *, rounded: bool = False) -> Table:
    lines = [[name, *(f"{tau:.3f} / {kappa:.3f}" for tau, kappa in cells)] for name, cells in rows.items()]
    for line, cells in zip(lines, rows.values(), strict=True):
        quotients = [kappa / tau for tau, kappa in cells if tau > 0]
        span = f"{min(quotients):.3f} to {max(quotients):.3f}" if quotients else "-"
        line += [span, "yes" if is_constant(cells, rounded=rounded) else "no"]
    if len(rows) > 1:
        spreads = [
            " / ".join(map(_describe_spread, zip(*cells, strict=True))) for cells in zip(*rows.values(), strict=True)
        ]
        lines.append(["largest over smallest", *spreads, "", ""])
    return Table(["calibration set", *columns, "kappa / tau", "constant"], lines)


def is_constant(cells: Sequence[Cell], *, rounded: bool = False) -> bool:
    """Whether kappa / tau is one number to three digits, as with threshold_to_mean; `rounded`: numbers of a printed table."""
    quotients = [kappa / tau for tau, kappa in cells if tau > 0] or [0.0]
    slack = 0.0005 / min((tau for tau, _ in cells if tau > 0), default=1.0) if rounded else 0.0
    return max(quotients) - min(quotients) <= max(quotients) * max(0.0005, 2 * slack)


def _describe_spread(values: Sequence[float]) -> str:
    return f"{max(values) / min(values):.3f}" if min(values) > 0 else "-"

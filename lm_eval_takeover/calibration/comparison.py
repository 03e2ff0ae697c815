"""How stable calibrations are: the paper's Table 13 for any set of them, and survival curves of their scores."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lm_eval_takeover.calibration.thresholds import KAPPA_RULES, Calibration
from lm_eval_takeover.errors import ArgumentError, CalibrationError
from lm_eval_takeover.storage.whole_files import write_whole

COLUMNS = (0.005, 0.01, 0.03, 0.05, 0.1)  # spike ratios of the table


@dataclass(frozen=True, slots=True)
class Row:
    """One calibration set: its (tau in nats, kappa) by column."""

    name: str
    cells: tuple[tuple[float, float], ...]
    rounded: bool = False  # to three decimals, as in a printed table

    @property
    def quotients(self) -> list[float]:
        """kappa / tau, by column; threshold_to_mean gives the same number in each, 1 / mean(S)."""
        return [kappa / tau for tau, kappa in self.cells if tau > 0]

    @property
    def is_constant(self) -> bool:
        """Whether kappa / tau is one number to three digits, as far as the numbers can tell."""
        slack = 0.0005 / min((tau for tau, _ in self.cells if tau > 0), default=1.0) if self.rounded else 0.0
        spread = max(self.quotients, default=0.0) - min(self.quotients, default=0.0)
        return spread <= max(self.quotients, default=0.0) * max(0.0005, 2 * slack)


def compare_calibrations(
    calibrations: Sequence[Calibration], score: str = "ce", kappa_rule: str = KAPPA_RULES[0]
) -> str:
    """Table 13 as Markdown: tau and kappa by calibration set and spike ratio, their spread, and kappa / tau."""
    measured = [calibration for calibration in calibrations if calibration.source == "measured"]
    parts = []
    if measured:
        names = _names(measured)
        rows = [
            Row(name, tuple((t.tau, t.kappa(kappa_rule)) for t in map(calibration.score(score).threshold, COLUMNS)))
            for name, calibration in zip(names, measured, strict=True)
        ]
        parts.append(_table([f"{rho:.1%}" for rho in COLUMNS], rows, f"{score}, {kappa_rule}, by spike ratio"))
    for calibration in calibrations:
        if calibration.source == "published":
            if score not in calibration.columns:
                calibration.score(score)
            rows = [
                Row(name, tuple((cell["tau"], cell["kappa"]) for cell in cells), rounded=True)
                for name, cells in calibration.columns[score].items()
            ]
            width = max(len(row.cells) for row in rows)
            title = f"{score}, `{calibration.name}` (published), by column"
            parts.append(_table([f"column {number + 1}" for number in range(width)], rows, title))
    return "\n\n".join(parts)


def _names(calibrations: Sequence[Calibration]) -> list[str]:
    """File names; numbered where two are the same."""
    names = [calibration.name for calibration in calibrations]
    return [name if names.count(name) == 1 else f"{name} ({number + 1})" for number, name in enumerate(names)]


def _table(columns: Sequence[str], rows: Sequence[Row], title: str) -> str:
    lines = [
        f"tau (nats) / kappa: {title}",
        "",
        f"|calibration set|{'|'.join(columns)}|kappa / tau|constant|",
        f"|---|{'---:|' * len(columns)}---:|---|",
    ]
    for row in rows:
        cells = [f"{tau:.3f} / {kappa:.3f}" for tau, kappa in row.cells]
        quotients = row.quotients
        span = f"{min(quotients):.3f} to {max(quotients):.3f}" if quotients else "-"
        lines.append(f"|{row.name}|{'|'.join(cells)}|{span}|{'yes' if row.is_constant else 'no'}|")
    if len(rows) > 1:
        spreads = [
            f"{_spread([row.cells[c][0] for row in rows])} / {_spread([row.cells[c][1] for row in rows])}"
            for c in range(len(columns))
        ]
        lines.append(f"|largest over smallest|{'|'.join(spreads)}| | |")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    return f"{max(values) / min(values):.3f}" if min(values) > 0 else "-"


_UNDATED: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}


def check_plot(path: Path) -> None:
    """Raises ArgumentError for a suffix that cannot be drawn, and without matplotlib."""
    if path.suffix.lower() not in _UNDATED:
        raise ArgumentError(f"--plot '{path}' has the suffix '{path.suffix}'; expected .svg, .png or .pdf")
    if importlib.util.find_spec("matplotlib") is None:
        raise ArgumentError("--plot needs matplotlib: pip install '.[plot]'")


def plot_scores(calibrations: Sequence[Calibration], path: Path, score: str = "ce") -> None:
    """Survival curves of the scores, log-log: the share of tokens above each score in nats. SVG, PNG or PDF, by the suffix.

    Raises ArgumentError as `check_plot` does, CalibrationError where nothing can be drawn.
    """
    check_plot(path)
    import matplotlib
    from matplotlib.figure import Figure

    measured = [calibration for calibration in calibrations if calibration.source == "measured"]
    if not measured:
        raise CalibrationError("--plot: published tables hold no distribution of scores; give a measured calibration")
    drawn = [
        (name, calibration)
        for name, calibration in zip(_names(measured), measured, strict=True)
        if calibration.score(score).mean > 0
    ]
    if not drawn:
        raise CalibrationError(
            f"--plot: all {score} scores are 0, which a logarithmic axis cannot show; choose another --score"
        )
    matplotlib.rcParams["svg.hashsalt"] = "lm-eval-takeover"  # the same picture is the same file
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for name, calibration in drawn:
        sketch = calibration.score(score).sketch
        points = [(tau, rho) for tau, rho in zip(sketch["tau"], sketch["rho"], strict=True) if tau > 0]
        axes.plot(*zip(*points, strict=True), label=f"{name} ({calibration.tokens or 0:,} tokens)", linewidth=1.4)
    axes.set(xscale="log", yscale="log", xlabel=f"{score} (nats)", ylabel="share of tokens above")
    axes.grid(which="major", linewidth=0.4, alpha=0.5)
    axes.legend(frameon=False, fontsize="small")
    kind = path.suffix.lower()
    write_whole(
        path, lambda stream: figure.savefig(stream, format=kind[1:] or "png", metadata=_UNDATED.get(kind), dpi=160)
    )

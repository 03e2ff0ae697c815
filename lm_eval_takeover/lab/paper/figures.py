"""Figure 5 as printed: a panel for each task, Acc and Pass@8 against the realized rate, the thinking model as a line."""

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval_takeover.lab.analysis.figures import put_legend
from lm_eval_takeover.lab.extra import draw_svg

_METRICS = {"acc": ("Acc", "#2f81f7"), "pass8": ("Pass@8", "#d1495b")}
Line = Mapping[str, Any]  # of frontier.json


def draw_rates(lines: Sequence[Line], rows: Sequence[str]) -> str:
    """An SVG of these rows. Of a single task the average is left out."""
    shown = [line for line in lines if line["row"] in rows]
    tasks = list(dict.fromkeys(line["task"] for line in shown))
    tasks = tasks[:1] if len(tasks) == 2 else tasks
    height = (len(tasks) + 1) // 2

    def draw(figure: Any) -> None:
        grid = figure.subplots(height, min(2, len(tasks)), sharex=True, sharey=True, squeeze=False)
        for axes, task in zip(grid.flat, tasks, strict=False):
            _draw_task(axes, [line for line in shown if line["task"] == task])
            axes.set_title(task, loc="left", fontsize=9)
        for axes in list(grid.flat)[len(tasks) :]:
            axes.set_axis_off()
        figure.supxlabel("realized rate", fontsize=9)
        put_legend(figure)

    return draw_svg(draw, (4.0, 1.4 + 1.5 * height))


def _draw_task(axes: Any, lines: Sequence[Line]) -> None:
    """Without the guide, whose rate of 1 would hide the others."""
    axes.set_ylim(0, 1.03)
    for metric, (name, colour) in _METRICS.items():
        points = [line for line in lines if line["row"] != "guide" and line[metric] is not None]
        rated = sorted((line["realized_rate"], line[metric]) for line in points if line["row"] != "thinking")
        axes.plot(*([point[i] for point in rated] for i in (0, 1)), color=colour, marker="o", markersize=3, label=name)
        for line in (line for line in points if line["row"] == "thinking"):
            axes.axhline(line[metric], color=colour, linestyle="--", linewidth=1, label=f"{name}, thinking")

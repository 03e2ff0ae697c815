"""What the extra `lab` brings: whether it is installed, and figures by matplotlib."""

import io
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_figure, for_terminal


def need_lab_packages(command: str) -> None:
    """Raise ArgumentError where the extra `lab` is not installed."""
    for name in ("polars", "matplotlib"):
        if find_spec(name) is None:
            raise ArgumentError(f"{command} needs the package {name}: pip install '.[lab]' in a checkout")


_FIGURE: dict[str, Any] = {"svg.hashsalt": "lm-eval-takeover", "svg.fonttype": "none", "font.size": 9}
_FIGURE |= dict.fromkeys(("axes.spines.top", "axes.spines.right"), False)
_FIGURE["axes.prop_cycle"] = "cycler('color', ['2f81f7', 'd1495b', '1b9aaa', '8d6a9f', 'b58900', '5c6b8a'])"


def draw_svg(draw: Callable[[Any], None], size: tuple[float, float], settings: Mapping[str, Any] | None = None) -> str:
    """`draw`'s matplotlib Figure (inches) as SVG, always the same text."""
    import matplotlib
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.ticker import FixedLocator, FuncFormatter

    stream = io.StringIO()
    with matplotlib.rc_context({**_FIGURE, **(settings or {})}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        # Names of others: labels, titles, legends, and the names of ticks, which are written while the figure is drawn.
        for axis in figure.findobj(Axis):  # by set_ticks with names:
            if isinstance(axis.get_major_formatter(), FuncFormatter) and isinstance(axis.get_major_locator(), FixedLocator):
                axis.set_ticklabels([for_figure(label.get_text()) for label in axis.get_ticklabels()])
        for text in figure.findobj(Text):
            text.set_text(for_figure(text.get_text()))
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    svg = for_terminal(stream.getvalue())  # matplotlib writes control characters and U+FFFE as they are: no XML
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"

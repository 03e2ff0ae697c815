"""Figures that a stranger made are refused in a line."""

import pytest

from lm_eval_takeover.commands.report.figures import read_figure
from lm_eval_takeover.errors import ArgumentError


@pytest.mark.parametrize(
    "text", ["<g>" * 20_000 + "</g>" * 20_000, " " * 2**24, "x"], ids=["deep", "large", "no figure"]
)
def test_a_figure_is_bounded(tmp_path, text):
    path = tmp_path / "lorenz.svg"
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg">{text}</svg>' if text != "x" else text)
    with pytest.raises(ArgumentError, match="run lm-eval-takeover analyze again"):
        read_figure(path)

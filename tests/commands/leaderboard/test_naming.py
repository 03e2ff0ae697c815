"""Names of rows: the label, or what tells a run from the others."""

import pytest
from helpers.results import takeover, write_results

from lm_eval_takeover.commands.leaderboard.rows import build_board

TASK = "takeover_amc23"


@pytest.fixture
def names(tmp_path):
    """Of two guided runs that differ so: their names, and the lines on what names leave out."""

    def name(*written):
        for place, one in enumerate(written):
            run = takeover(**{"seed": 0, **one.pop("run", {})})
            write_results(tmp_path / str(place), {TASK: [4] * 20}, run=run, **one)
        board = build_board([tmp_path], [], None)
        return [row.name for row in board.rows], [line for line in board.warnings if line.startswith(f"{GUIDED} (seed")]

    return name


GUIDED = "Small-Base + Guided"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {"run": {"seed": 1}}, [f"{GUIDED} (seed 0)", f"{GUIDED} (seed 1)"]),
        ({}, {"chat_template_sha": "0a1b2c3d"}, [f"{GUIDED} (chat_template off)", f"{GUIDED} (chat_template on (0a1b2c))"]),
        (
            {"run": {"target_rate": 0.02, "tau": 3.0}},
            {"run": {"target_rate": 0.05}},
            [f"{GUIDED} (rate 0.0{n})" for n in (2, 5)],
        ),
        ({"run": {"tau": 3.0}}, {}, [f"{GUIDED} (tau 3.0)", f"{GUIDED} (tau 1.5)"]),
        ({"run": {"label": "short"}}, {"run": {"label": "long", "seed": 1}}, ["short", "long"]),
        ({"run": {"label": "Small-Base+Large-disagreement"}}, {"run": {"label": "own", "seed": 1}}, [GUIDED, "own"]),
        ({}, {"verifier": "math_verify"}, [GUIDED, f"{GUIDED}, math_verify"]),
    ],
    ids=["seed", "template", "rate", "tau alone", "labels", "a label that every such run has", "verifier"],
)
def test_a_name_is_the_label_or_what_differs(names, first, second, expected):
    assert names(first, second) == (expected, [])


def test_what_a_name_leaves_out_is_a_warning(names):
    _, lines = names({}, {"run": {"seed": 1, "backend": "vllm"}, "decoding": {"temperature": 1.0}})
    assert lines == [f"{GUIDED} (seed 0): backend hf, temperature 0.6", f"{GUIDED} (seed 1): backend vllm, temperature 1.0"]

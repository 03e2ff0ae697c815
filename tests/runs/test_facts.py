"""What a run says of itself: labels, by which folders and rows are told apart."""

from types import SimpleNamespace

import pytest
from helpers.pairs import METHODS, POLICIES

from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Disagreement
from lm_eval_takeover.method.registry import load_plugins
from lm_eval_takeover.runs.facts import default_label

PAIR = SimpleNamespace(
    members=[SimpleNamespace(id=SimpleNamespace(id=name)) for name in ("org/base", "org/guide@main")]
)
PLUGIN = """
from lm_eval_takeover import register_score


@register_score("test_of_mine", needs_donor=False)
def mine(host_logits):
    return host_logits.amax(-1)
"""


@pytest.mark.parametrize(
    ("policy", "label"),
    [
        (POLICIES["disagreement"], "base+guide@main-disagreement"),
        (POLICIES["rkl"], "base+guide@main-disagreement-rkl"),
        (POLICIES["entropy"], "base+guide@main-entropy"),
        (METHODS["log_ratio"], "base+guide@main-disagreement-log_ratio"),
        (METHODS["segment of entropy"], "base+guide@main-segment-entropy"),
    ],
)
def test_the_score_is_part_of_the_label_unless_it_is_the_usual_one(policy, label):
    assert default_label(PAIR, policy) == label


def test_a_plug_ins_score_is_part_of_the_label(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    load_plugins(str(file))
    assert default_label(PAIR, Disagreement(score="test_of_mine", gate=Gate(1.0))).endswith(
        "-disagreement-test_of_mine"
    )

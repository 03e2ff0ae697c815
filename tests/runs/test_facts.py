"""What a run says of itself: labels, by which folders and rows are told apart."""

from types import SimpleNamespace

import pytest
from helpers.pairs import METHODS, POLICIES

from lm_eval_takeover.runs.facts import default_label

IDS = (SimpleNamespace(id=name) for name in ("org/base", "org/guide@main"))
PAIR = SimpleNamespace(members=[SimpleNamespace(id=one) for one in IDS])


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

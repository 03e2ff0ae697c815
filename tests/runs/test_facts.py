"""What a run says of itself: labels, by which folders and rows are told apart."""

from lm_eval_takeover.runs.facts import make_label


def test_the_score_is_part_of_the_label_unless_it_is_the_usual_one():
    for policy, score, label in (
        ("disagreement", "ce", "base+guide@main-disagreement"),
        ("disagreement", "rkl", "base+guide@main-disagreement-rkl"),
        ("entropy", "entropy", "base+guide@main-entropy"),
        ("segment", "entropy", "base+guide@main-segment-entropy"),
        ("random", None, "base+guide@main-random"),
    ):
        assert make_label(["org/base", "org/guide@main"], policy, score) == label

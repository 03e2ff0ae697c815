"""The ledger of costs by the definition of each method, on one hand-made trace."""

import math
from array import array

import pytest

from lm_eval_takeover.lab.methods import Ensemble, Lossy, Segment
from lm_eval_takeover.method.generation import OBSERVED, Generation
from lm_eval_takeover.method.policies import ALONE, Disagreement, Early, Entropy, Random
from lm_eval_takeover.runs.recorder import count_asked, count_changed

TOKENS = [11, 12, 13, 14, 15, 16]
HOST = [11, 12, 93, 14, 95, 16]  # what the host draws at each place
TAKEN = [False, False, True, True, True, False]  # of three takeovers, one is the host's own token
MIXED = [False, False, True, False, True, False]  # of a mix, where the token is not the host's


def make_text(taken=TAKEN, host=HOST, traced=True, donor_answer=0):
    observed = array("f")
    for token in host:
        observed.extend([0.5] * (len(OBSERVED) - 1) + [token])
    scores = [0.0] * len(TOKENS)
    given = {"observed": observed if traced else None, "donor_answer": donor_answer}
    return Generation(list(TOKENS), list(taken), scores, **given)


UNKNOWN = [11, 12, math.nan, math.nan, math.nan, 16]  # the host is not asked where the donor writes
EVERYWHERE = {name: Disagreement(score=name) for name in ("ce", "rkl", "js", "top1", "surprise", "log_ratio")}
WHERE_IT_WRITES = {"entropy": Entropy(), **{name: Disagreement(score=name) for name in ("margin", "confidence")}}


@pytest.mark.parametrize(
    ("policy", "text", "changed", "asked"),
    [
        *((policy, make_text(), 2, 6) for policy in EVERYWHERE.values()),
        *((policy, make_text(), 2, 3) for policy in WHERE_IT_WRITES.values()),
        (Segment(score="ce"), make_text(), 2, 6),
        (Segment(score="entropy"), make_text(), 2, 3),
        (Lossy(), make_text(), 2, 6),
        (Ensemble(), make_text(MIXED), 2, 6),
        (Random(rate=0.5), make_text(host=UNKNOWN), None, 3),
        (Early(early_tokens=3), make_text(host=UNKNOWN), None, 3),
        (Early(rate=0.5), make_text(host=UNKNOWN, donor_answer=7), None, 10),
        (ALONE["base"](), make_text([False] * 6, TOKENS), 0, 0),
        (ALONE["guide"](), make_text([True] * 6, [math.nan] * 6), None, 6),
    ],
    ids=[*EVERYWHERE, *WHERE_IT_WRITES, "segment-ce", "segment-entropy", "lossy", "ensemble", "random", "early", "early-rate",
         "base", "guide"],
)  # fmt: skip
def test_changed_and_asked_follow_from_the_method(policy, text, changed, asked):
    assert (count_changed(policy, text), count_asked(policy, text)) == (changed, asked)


def test_changed_tokens_are_not_known_without_a_trace_and_without_the_tokens_that_a_text_begins_with():
    assert count_changed(Disagreement(), make_text(traced=False)) is None
    begun = make_text()
    begun.observed = begun.observed[len(OBSERVED) * 3 :]
    assert count_changed(Disagreement(), begun) == 1

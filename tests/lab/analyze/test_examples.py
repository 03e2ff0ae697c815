"""The words of tokens, and which of their contexts are drawn."""

import numpy as np

from lm_eval_takeover.lab.analysis.tokens import SampleTokens
from lm_eval_takeover.lab.analyze.examples import SHOWN, Words, count_words, draw_contexts

PIECES = [" so", "me", " the", "The", ".\n", " a"]
WORDS = Words.read(PIECES)


def test_a_part_of_a_longer_word_is_none():
    found = WORDS.find(np.array([0, 1, 2, 4, 3, 2, 0, 5, 9]))
    assert [WORDS.names[word] if word >= 0 else None for word in found] == [
        *(None, None, "the", None, "the", "the", "so", None, None)
    ]


def test_contexts_are_drawn_by_seed_and_place_alone():
    values = np.tile(np.array([0.5, 0.0, 0.05], np.float32), 20)
    samples = [SampleTokens(("t", doc, 0), {"token_id": np.tile([2, 2, 2], 20), "js": values}) for doc in range(4)]
    assert count_words(samples, WORDS, "js")[:, WORDS.names.index("the")].tolist() == [80, 80]
    drawn = [
        [(row["set"], row["doc_id"], row["position"]) for row in draw_contexts(order, WORDS, 2, "js", seed)]
        for order, seed in ((samples, 0), (samples[::-1], 0), (samples, 1))
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 2 * SHOWN and {at % 3 for side, _, at in drawn[0] if side == "high"} == {0}

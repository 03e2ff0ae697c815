"""Planning and execution tokens, and the paper's own cross-checks."""

import numpy as np
import polars as pl
import pytest

from lm_eval_takeover.lab.measures.planning import (
    EXECUTION,
    NONE,
    PLANNING,
    classify_text,
    classify_vocabulary,
    tabulate_planning,
)
from lm_eval_takeover.lab.measures.pooling import make_frame


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((word, PLANNING) for word in (" Therefore", "wait", "\nFirst", "WHAT", "analyze")),
        *(
            (mark, EXECUTION)
            for mark in ("7", "3.14", ".5", " +", "^{", "$$", "\\", "\\frac", ")$", " ≤", "}=", "*", "frac", "$.", "),")
        ),
        *((word, NONE) for word in ("text", "**.", "steps", "break", "**", "---", "||", ".", ",", "%", "the", "", " ", "\n")),
    ],
)
def test_classes_of_single_tokens(text, kind):
    assert classify_vocabulary([text]).codes.tolist() == [kind]


def test_a_letter_is_a_variable_beside_arithmetic_only():
    texts = ["let", " x", "=", " a", " word", "I", "7"]
    vocabulary = classify_vocabulary(texts)

    def kinds(*tokens):
        ids = np.array([texts.index(token) for token in tokens])
        return classify_text(vocabulary, ids).tolist()

    assert kinds("let", " x", "=") == [PLANNING, EXECUTION, EXECUTION]
    assert kinds(" x", " word", " x") == [NONE, NONE, NONE]
    assert kinds("7", " a", " word") == [EXECUTION, NONE, NONE]
    assert kinds("7", " a", "=") == [EXECUTION] * 3
    assert kinds("I", " x") == [NONE, NONE]
    ids = np.array([1, 2, -1, 2**31 - 1], dtype=np.int32)  # the tokenizer lacks the last three
    assert classify_text(classify_vocabulary(["wait", "7"]), ids).tolist() == [EXECUTION, NONE, NONE, NONE]


def test_a_character_of_several_tokens_counts_at_each_of_them():
    """As byte-level vocabularies have them, 49,152 entries of which are no √: two tokens, other ones behind a space."""
    texts = ["The", "\ufffd", "\ufffd", " \ufffd", "2", *(["word"] * 49_147)]
    spelt = {"√": [1, 2], " √": [3, 2], "≈": [1, 1], "·": [4]}
    vocabulary = classify_vocabulary(texts, encode=lambda text: spelt.get(text, [0]))
    assert vocabulary.characters == ((1, 1), (1, 2), (3, 2))
    found = classify_text(vocabulary, np.array([0, 3, 2, 4, 2, 1, 2, 0]))
    assert found.tolist() == [NONE, EXECUTION, EXECUTION, EXECUTION, NONE, EXECUTION, EXECUTION, NONE]
    assert classify_text(vocabulary, np.array([1])).tolist() == [NONE]


def test_enrichment_has_an_interval_over_problems():
    """Planning is twice as frequent at peaks as elsewhere; one problem in three has all the peaks that are planning."""
    rows = []
    for doc in range(60):
        at_peaks = np.array([12, 18]) if doc % 3 == 0 else np.array([0, 30])
        counts = {"in_set": at_peaks, "in_base": np.array([20, 280])}
        rows += [{"task": "t", "doc_id": doc, "run": "base", "set": "peaks", "score": "ce", **counts}] * 4
    (row,) = tabulate_planning(make_frame(rows)).filter(pl.col("task") == "t", pl.col("class") == "planning").to_dicts()
    assert row["enrichment"] == pytest.approx((4 / 30) / (20 / 300))
    half = 1.96 * np.sqrt(2 / 9 / 60) * 12 / 30 / (20 / 300)  # of the share of problems with such peaks
    assert (row["low"], row["high"]) == (pytest.approx(2 - half, abs=0.1), pytest.approx(2 + half, abs=0.1))
    alone = tabulate_planning(make_frame(rows[:4])).to_dicts()
    assert {row["low"] for row in alone} == {None}


def test_counts_are_pooled_over_tasks():
    """As in the paper's Table 1: the mean of the shares in its Table 6 is another number."""
    counts = {"takeover_gsm8k": ([8, 2], [10, 90]), "takeover_amc23": ([10, 80], [100, 800])}
    rows = [
        {"task": task, "doc_id": 0, "run": "base", "set": "peaks", "score": "ce"}
        | {"in_set": np.array(peaks), "in_base": np.array(everywhere)}
        for task, (peaks, everywhere) in counts.items()
    ]
    mean = tabulate_planning(make_frame(rows)).filter(task="mean").row(0, named=True)
    assert (mean["class"], mean["share_set"], mean["share_base"]) == ("planning", 0.18, 0.11)
    assert mean["enrichment"] == pytest.approx(0.18 / 0.11)

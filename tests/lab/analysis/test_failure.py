"""AUROC by problem beside scikit-learn, thresholds, and what other signals explain."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from lm_eval_takeover.lab.analysis import pooling
from lm_eval_takeover.lab.analysis.failure import (
    choose_threshold,
    count_pairs,
    cross_validated_accuracy,
    measure_failure,
    tabulate_failure,
)
from lm_eval_takeover.lab.analysis.tokens import SampleTokens

labelled = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5), st.booleans()), min_size=2, max_size=60)


def test_the_signal_is_the_mean_of_the_100_largest():
    def signal(scores):
        return measure_failure(SampleTokens(("t", 0, 0), {"token_id": scores, "ce": scores}), "ce")["signal_value"]

    x = np.random.default_rng(0).exponential(size=250).astype(np.float32)
    assert signal(x) == pytest.approx(np.sort(x)[-100:].mean(dtype=float))
    assert signal(x[:30]) == pytest.approx(x[:30].mean(dtype=float))
    assert np.isfinite(signal(np.append(x, np.float32(np.inf))))  # a donor that rules a token out


@given(labelled)
def test_auroc_of_pairs_is_scikit_learns(rows):
    problems, signal, incorrect = (np.array(column) for column in zip(*rows, strict=True))
    pairs = count_pairs(problems, signal.astype(float), incorrect.astype(float))
    assert (pairs.positive.sum(), pairs.negative.sum()) == (incorrect.sum(), (~incorrect).sum())
    auroc, within = pairs.areas()
    if 0 < incorrect.sum() < len(rows):
        assert auroc == pytest.approx(roc_auc_score(incorrect, signal))
    inside = [
        (x > y) + (x == y) / 2
        for p, x, wrong in rows for q, y, other in rows if p == q and wrong and not other
    ]  # fmt: skip
    assert within == pytest.approx(np.mean(inside)) if inside else np.isnan(within)


def test_the_bootstrap_of_auroc_is_that_of_rows_drawn_by_problem():
    rng = np.random.default_rng(3)
    problems, signal = np.repeat(np.arange(12), 4), rng.normal(size=48)
    incorrect = signal + rng.normal(size=48) > 0
    drawn_counts = pooling.draw_weights(12, "t")[:30]
    found = count_pairs(problems, signal, incorrect.astype(float)).areas(drawn_counts)[:, 0]
    for weights, value in zip(drawn_counts, found, strict=True):
        drawn = np.concatenate([np.flatnonzero(problems == p).repeat(int(n)) for p, n in enumerate(weights)])
        assert value == pytest.approx(roc_auc_score(incorrect[drawn], signal[drawn]))


@given(labelled)
def test_no_threshold_calls_more_samples_rightly(rows):
    _, signal, incorrect = (np.array(column) for column in zip(*rows, strict=True))
    threshold = choose_threshold(signal.astype(float), incorrect)
    best = max(((signal > t) == incorrect).sum() for t in (-1, *(signal + 0.5)))
    assert ((signal > threshold) == incorrect).sum() == best


def test_a_threshold_is_chosen_on_other_problems():
    problems, signal = np.arange(10).repeat(2), np.tile([1.0, 3.0], 10)
    incorrect = signal > 2
    incorrect[problems % 5 == 0] ^= True  # the fold of problems 0 and 5 goes the other way
    assert cross_validated_accuracy(problems, signal, incorrect) == 0.8
    assert np.isnan(cross_validated_accuracy(problems * 5, signal, incorrect))


def test_one_class_has_no_auroc_and_no_interval():
    columns = {"task": "t", "doc_id": [0, 1, 2], "sample": 0, "score": "ce", "signal_value": [1.0, 2, 3], "length": 9.0}
    frame = pl.DataFrame(columns)
    row, length, mean, _ = tabulate_failure(frame.with_columns(correct=pl.lit(True))).to_dicts()
    assert length["signal"] == "length"
    assert (row["auroc"], row["low"], row["accuracy"], row["majority"]) == (None, None, 1.0, 1.0)
    assert mean["auroc"] is None and mean["task"] == "mean"


def test_a_signal_of_length_is_no_better_than_length_and_one_of_difficulty_tells_nothing_within_problems():
    """Scores that grow with the text, where wrong texts are longer, have a high AUROC that says nothing."""
    rng, rows = np.random.default_rng(0), []
    for doc in range(40):  # half of them are hard
        for j in range(8):
            wrong = bool(rng.random() < (0.75 if doc % 2 else 0.25))
            length = float(4 * wrong + rng.normal())
            for name, signal in (("ce", length), ("entropy", 4 * (doc % 2))):
                rows.append(("takeover_gsm8k", doc, j, name, signal + rng.normal(), length, not wrong))
    names = ["task", "doc_id", "sample", "score", "signal_value", "length", "correct"]
    found = {row["signal"]: row for row in tabulate_failure(pl.DataFrame(rows, schema=names, orient="row")).to_dicts()}
    assert found["ce"]["auroc"] > 0.9 and found["length"]["auroc"] > found["ce"]["auroc"]
    assert found["ce"]["minus_length"] == pytest.approx(found["ce"]["auroc"] - found["length"]["auroc"])
    assert found["ce"]["minus_length_high"] < 0 < found["ce"]["minus_entropy_low"] < found["ce"]["minus_entropy"]
    assert found["length"]["minus_length"] is None
    hard = found["entropy"]
    assert hard["auroc"] > 0.65 and hard["within_low"] < 0.5 < hard["within_high"] < 0.62
    assert found["ce"]["within_low"] > 0.85

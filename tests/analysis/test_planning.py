"""Planning and execution tokens, and the paper's own cross-checks."""

import numpy as np
import polars as pl
import pytest
from scipy.optimize import linprog

from lm_eval_takeover.analysis.catalogue import make_frame
from lm_eval_takeover.analysis.outcomes import tabulate_flips
from lm_eval_takeover.analysis.planning import (
    EXECUTION,
    NONE,
    PLANNING,
    RULES,
    Rules,
    classify_text,
    classify_vocabulary,
    tabulate_planning,
)
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.published import read_tables

TABLES = read_tables()
TASKS = {
    "Math500": "takeover_math500_100", "MATH500": "takeover_math500_100", "GSM8K": "takeover_gsm8k_100",
    "AMC23": "takeover_amc23", "OlympiadBench": "takeover_olympiadbench_100", "Olympiad": "takeover_olympiadbench_100",
    "AIME24": "takeover_aime24", "AIME25": "takeover_aime25",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((word, PLANNING) for word in (" Therefore", "wait", "\nFirst", "WHAT", "analyze")),
        *((mark, EXECUTION) for mark in ("7", "3.14", ".5", " +", "^{", "$$", "\\", "\\frac", ")$", " ≤", "}=", "*")),
        *(
            (word, NONE)
            for word in ("frac", "steps", "break", "**", "---", "||", ".", ",", ":", "%", "the", "", " ", "\n")
        ),
    ],
)
def test_classes_of_single_tokens(text, kind):
    assert classify_vocabulary([text]).tolist() == [kind]


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


def test_an_id_that_the_tokenizer_lacks_has_no_class():
    ids = np.array([1, 2, -1, 2**31 - 1], dtype=np.int32)
    assert classify_text(classify_vocabulary(["wait", "7"]), ids).tolist() == [EXECUTION, NONE, NONE, NONE]


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


def test_the_classes_are_a_file_that_a_user_can_replace(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(RULES.read_text().replace('"first", "next"', '"zuerst", "Dann"'))
    texts = [" Zuerst", "dann", "first", "7"]
    assert classify_vocabulary(texts, Rules.read(own)).tolist() == [PLANNING, PLANNING, NONE, EXECUTION]
    for text, message in (
        ("[planning]", "'execution' is missing; begin with a copy of"),
        ("x", "begin with a copy of"),
        (RULES.read_text().replace("'\\\\[A-Za-z]+'", "'('"), "begin with a copy of"),
        (RULES.read_text().replace('["a", "i"]', '"a"'), "'a' is no list of words"),
    ):
        own.write_text(text)
        with pytest.raises(ArgumentError, match=message) as raised:
            Rules.read(own)
        assert "\n" not in str(raised.value) and "own.toml" in str(raised.value)
    with pytest.raises(ArgumentError, match="cannot be read: No such file"):
        Rules.read(tmp_path / "none.toml")


def shares_of_table_6():
    """Rows `[tasks, 3]` in percent: planning among all tokens, at peaks of CE, at peaks of entropy."""
    rows = TABLES["6"]["rows"]
    return np.array([[float(row[place]) for place in (1, 2, 5)] for row in rows]), [TASKS[row[0]] for row in rows]


def find_pooling_shares(shares, printed, rounding):
    """Shares of classifiable tokens by data set `[tasks, 3]` that pool to the printed figures, if there are any.

    Not quite the same ones in the three sets: within a factor of 1.25 of those among all tokens.
    """
    tasks, sets = shares.shape
    limits, bounds = [], []
    for column in range(sets):
        pooled = np.zeros((sets, tasks))
        pooled[column] = shares[:, column]
        limits += [pooled.ravel(), -pooled.ravel()]
        bounds += [printed[column] + rounding, rounding - printed[column]]
        for task in range(tasks) if column else ():
            for sign, factor in ((1, 1.25), (-1, 0.8)):
                near = np.zeros((sets, tasks))
                near[column, task], near[0, task] = sign, -sign * factor
                limits.append(near.ravel())
                bounds.append(0.0)
    whole = np.kron(np.eye(sets), np.ones(tasks))
    found = linprog(np.zeros(sets * tasks), limits, bounds, whole, np.ones(sets), bounds=(0.02, None))
    assert found.success
    return found.x.reshape(sets, tasks).T


def test_table_6_pools_to_table_1_and_its_mean_does_not():
    shares, tasks = shares_of_table_6()
    printed, rounding = np.array([1.89, 14.13, 15.75]), 0.011
    assert [TABLES["1"]["rows"][row][2] for row in (1, 0)] == ["14.13", "15.75"]
    assert np.abs(shares.mean(axis=0) - printed).min() > 0.05
    weights = find_pooling_shares(shares, printed, rounding)
    rows = []
    for task, weight, (overall, *peaks) in zip(tasks, weights, shares, strict=True):
        for column, (score, peak) in enumerate(zip(("ce", "entropy"), peaks, strict=True), 1):
            in_set = np.array([peak, 100 - peak]) * weight[column] * 1e6
            in_base = np.array([overall, 100 - overall]) * weight[0] * 1e8
            counts = {"in_set": in_set.astype(int), "in_base": in_base.astype(int)}
            rows.append({"task": task, "doc_id": 0, "run": "base", "set": "peaks", "score": score, **counts})
    table = tabulate_planning(make_frame(rows)).filter(pl.col("task") == "mean", pl.col("class") == "planning")
    by_score = {row["score"]: row for row in table.to_dicts()}
    for (_, overall, at_peaks, enrichment), score in zip(TABLES["1"]["rows"], ("entropy", "ce"), strict=True):
        row = by_score[score]
        assert 100 * row["share_base"] == pytest.approx(float(overall), abs=2 * rounding)
        assert 100 * row["share_set"] == pytest.approx(float(at_peaks), abs=2 * rounding)
        assert row["enrichment"] == pytest.approx(float(enrichment), rel=0.01)


def test_table_14_is_the_second_row_of_table_3():
    """Problems solved by the base, and rescued, less harmed: through our own table of flips."""
    base, guided = TABLES["3"]["rows"][0], TABLES["3"]["rows"][2]
    columns = TABLES["3"]["columns"]
    rows, expected, after = [], {}, {}
    for name, count, rescued, harmed in TABLES["14"]["rows"][:-1]:
        column = next(place for place, title in enumerate(columns) if TASKS.get(title) == TASKS[name])
        count, rescued, harmed = int(count), int(rescued), int(harmed)
        before, later = (float(row[column].split(" / ")[1]) * count / 100 for row in (base, guided))
        solved = [True] * round(before) + [False] * (count - round(before))
        changed = [True] * round(before - harmed) + [False] * harmed + [True] * rescued
        changed += [False] * (count - len(changed))
        for run, outcome in (("base", solved), ("guided", changed)):
            rows += [(run, TASKS[name], doc, 0, right) for doc, right in enumerate(outcome)]
        expected[TASKS[name]], after[TASKS[name]] = (count, rescued, harmed), (sum(changed), later)
    for solved, printed in after.values():
        assert solved == pytest.approx(printed, abs=0.05)
    samples = pl.DataFrame(rows, schema=["run", "task", "doc_id", "sample", "correct"], orient="row")
    table = {row["task"]: row for row in tabulate_flips(samples, "base").to_dicts()}
    for task, counts in expected.items():
        assert tuple(table[task][name] for name in ("problems", "rescued", "harmed")) == counts
    total = TABLES["14"]["rows"][-1][1:]
    assert [str(table["mean"][name]) for name in ("problems", "rescued", "harmed")] == total
    assert table["mean"]["p_value"] < 1e-38

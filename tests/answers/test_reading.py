"""Reading: what a response without a box answers, where its problem is known."""

import pytest
from helpers.tables import read_table
from reading_answers import load_bases

from lm_eval_takeover.answers import reading
from lm_eval_takeover.answers.reading import read_answer
from lm_eval_takeover.answers.samples import Question, judge_samples
from lm_eval_takeover.answers.verification import verify

CLOSING = read_table("closing_sentences")  # (problem, response, answer): invented, one for each kind that base models write


def test_the_closing_sentence_gives_the_answer():
    read = [(response, read_answer(response, problem=problem).answer, answer) for problem, response, answer in CLOSING]
    assert not [row for row in read if row[1] is None or verify(row[2], row[1]) != "correct"]


def test_each_rule_reads_what_no_other_rule_reads(monkeypatch):
    def read_all(rules):
        monkeypatch.setattr(reading, "RULES", rules)
        tables = [(problem, response) for problem, response, _ in CLOSING]
        tables += [("", response) for response, _ in read_table("extracted")]
        return [read_answer(response, problem=problem).answer for problem, response in tables]

    rules = reading.RULES
    whole = read_all(rules)
    assert 6 <= len(rules) <= 10
    for rule in rules:
        assert read_all(tuple(other for other in rules if other is not rule)) != whole, rule.__name__


def test_a_text_that_begins_anew_had_ended_before_its_token_limit():
    text = "Step 1: Add.\n3 + 4 = 7.\nSo there are 7 cats.\nStep 1: Add"
    assert read_answer(text, truncated=True).answer == "7"
    assert read_answer(text.partition("\nStep 1: Add")[0], truncated=True).answer is None


def test_real_texts_of_base_models():
    """A fifth of the labelled ones; `benchmarks/reading_answers.py` reads all."""
    rows = load_bases("all")[::5]
    if not rows:
        pytest.skip("the labelled texts are not beside this checkout")
    refused = {"box": 0, "no box": 0}
    accepted = []
    for row in rows:
        correct = judge_samples(Question(row.gold, [row.text], [False], problem=row.problem)).samples[0].outcome == "correct"
        refused[row.group.rpartition(", ")[2]] += row.right and not correct
        accepted += [row.source] if correct and not row.right else []
    right = [row.group.endswith("no box") for row in rows if row.right]
    assert refused["box"] == 0
    assert refused["no box"] <= 0.04 * right.count(True)
    assert len(accepted) <= 0.04 * (len(rows) - len(right))  # all of them are right: each was read, and its label is not

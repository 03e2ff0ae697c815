"""Answers that changed their verdict: the exact test, when it applies, its alarms and its power beside intervals."""

import numpy as np
import pytest
from commands.regress.conftest import write_exact
from gates import rate_changed
from helpers.results import TASK, draw_counts, takeover
from scipy import stats

from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import ArgumentError


@pytest.mark.parametrize(("worse", "better", "most", "verdict"), [
    (3, 0, "0", "inconclusive"), (3, 0, "3", "pass"), (6, 0, "0", "regressed"), (6, 0, "0.15", "pass"),
    (6, 0, "0.1", "regressed"),
    (0, 6, "1", "inconclusive"), (6, 5, "2", "inconclusive"), (0, 0, "0", "pass"), (12, 1, "2", "regressed"),
])  # fmt: skip
def test_greedy_answers_that_got_worse_regress_by_an_exact_sign_test(tmp_path, regress, capsys, worse, better, most, verdict):
    old = np.arange(40) < 30
    new = old.copy()
    new[:worse], new[30 : 30 + better] = False, True
    runs = [write_exact(tmp_path / name, right) for name, right in (("old", old), ("new", new))]
    status, found = regress(
        runs[1], "--baseline", runs[0], "--max_changed", most, "--metric", "exact_match", "--max_drop", "0.9"
    )
    task = found["metrics"]["changed answers"]["tasks"]["gsm8k"]
    assert (task["verdict"], task["now"]) == (verdict, (worse + better) / 40)
    exact = stats.binomtest(worse, worse + better, 0.5, "greater").pvalue if worse + better else 1
    assert task["p_value"] == pytest.approx(exact)
    assert status == (verdict == "regressed")
    assert task["low"] <= task["difference"] == (better - worse) / 40 <= task["high"]
    told = f"{worse + better} of 40 answers changed their verdict" + (", all got worse (" if worse and not better else "")
    assert told in task["note"]
    main(["regress", str(runs[1]), "--baseline", str(runs[0])])
    assert (f"gsm8k: {told}" in capsys.readouterr().err) == (worse > 0)  # without being asked


def test_a_baseline_file_keeps_the_seed_and_only_equal_numbers_are_compared(check, tmp_path):
    counts = np.array(draw_counts(1))
    lower = np.where(np.arange(300) < 20, np.maximum(counts - 1, 0), counts).tolist()
    words = "--max_changed", "0"
    with pytest.raises(ArgumentError, match="--max_changed: takeover_math500 is sampled, and the baseline has another seed"):
        check({TASK: lower}, *words)
    status, found = check({TASK: lower}, *words, run=takeover(seed=0))
    assert (status, found["metrics"]["changed answers"]["tasks"][TASK]["verdict"]) == (1, "regressed")
    sampled = [write_exact(tmp_path / name, [True] * 40, sampled=True) for name in ("one", "two")]
    with pytest.raises(ArgumentError, match="gsm8k is sampled"):  # other models' seeds say nothing of their numbers
        main(["regress", str(sampled[0]), "--baseline", str(sampled[1]), *words])


def test_documents_of_one_group_count_as_one(tmp_path, regress, capsys):
    """A family of three variants each: 120 answers are 40 families."""
    old, family = np.repeat(np.arange(40) < 30, 3), np.repeat(np.arange(40), 3).tolist()
    new = old.copy()
    new[:6] = False  # two families, all their variants
    runs = [write_exact(tmp_path / str(at), right, field=family) for at, right in enumerate((old, new))]
    words = runs[1], "--baseline", runs[0], "--max_changed", "0"
    alone, grouped = (regress(*words, *more)[1] for more in ([], ["--group", "family"]))
    spans = [found["tasks"]["gsm8k"]["high"] - found["tasks"]["gsm8k"]["low"] for found in (alone, grouped)]
    assert spans[1] > 1.5 * spans[0]
    tests = [found["metrics"]["changed answers"]["tasks"]["gsm8k"] for found in (alone, grouped)]
    assert [test["verdict"] for test in tests] == ["regressed", "inconclusive"]
    assert tests[1]["note"].startswith("2 of 40 answers")
    assert [found["tasks"]["gsm8k"]["difference"] for found in (alone, grouped)] == pytest.approx([-0.05] * 2)
    with pytest.raises(Exception, match=r"the document has no field 'kind' \(--group\); its fields: question, family"):
        regress(*words, "--group", "kind")


@pytest.mark.parametrize("problems", [40, 100, 500])
def test_the_exact_test_alarms_seldom_and_finds_what_intervals_find_or_more(problems):
    generator = np.random.default_rng(7)
    assert max(rate_changed(generator, problems, 0.0, 1000)) <= 0.035
    exact, interval, usual = rate_changed(generator, problems, 0.1, 1000)
    assert exact >= max(interval - 0.01, usual + 0.1 * (problems < 500), {40: 0.3, 100: 0.85, 500: 0.99}[problems])

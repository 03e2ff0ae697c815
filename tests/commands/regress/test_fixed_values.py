"""vLLM's `lm-eval-harness` configurations as baselines: a planted drop, an unchanged run, and plans on the file alone."""

import numpy as np
import pytest
from commands.regress.conftest import write_exact
from scipy import stats

from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import ArgumentError, ResultsError

FILE = """# of our own making
model_name: "acme/Small-8B"
tasks:
- name: "gsm8k"
  metrics:
  - name: "exact_match,strict-match"
    value: 0.756
  - name: "exact_match,flexible-extract"
    value: 0.752
limit: 250
num_fewshot: 5
rtol: 0.08
"""


@pytest.fixture
def against(tmp_path, regress):
    """Compares a run with so many of 250 right with the file: `(status, JSON)`."""
    (tmp_path / "small.yaml").write_text(FILE)

    def compare(right, *words, **written):
        run = write_exact(tmp_path / f"{right}-{len(list(tmp_path.iterdir()))}", np.arange(250) < right, **written)
        return regress(run, "--baseline", tmp_path / "small.yaml", *words)

    return compare


@pytest.mark.parametrize(("right", "words", "status", "verdict"), [
    (189, [], 0, "inconclusive"), (189, ["--max_drop", "0.1"], 0, "pass"), (160, [], 1, "regressed"),
    (160, ["--max_drop", "0.08"], 0, "inconclusive"),
])  # fmt: skip
def test_a_planted_drop_is_found_by_the_interval_of_the_run_alone(against, right, words, status, verdict):
    got, found = against(right, *words)
    assert (got, found["verdict"]) == (status, verdict)
    assert list(found["metrics"]) == ["exact_match,strict-match", "exact_match,flexible-extract"]
    task = found["tasks"]["gsm8k"]
    assert (task["baseline"], task["now"], task["verdict"]) == (0.756, right / 250, verdict)
    wilson = stats.binomtest(right, 250).proportion_ci(0.95, "wilson")
    assert (task["low"] + 0.756, task["high"] + 0.756) == (
        pytest.approx(wilson.low, abs=2e-3),
        pytest.approx(wilson.high, abs=2e-3),
    )
    assert ("could tell" in task["note"]) == (verdict == "inconclusive")
    limit = float(words[1]) if words else 0.02
    assert task["p_value"] == pytest.approx(stats.norm.cdf((right / 250 - 0.756 + limit) / np.sqrt(
        (0.756 - limit) * (0.244 + limit) / 250)), abs=0.01)  # fmt: skip


def test_a_metric_of_the_file_is_chosen_and_other_examples_are_refused(against, capsys):
    assert list(against(189, "--metric", "exact_match,flexible-extract")[1]["metrics"]) == ["exact_match,flexible-extract"]
    with pytest.raises(ArgumentError, match=r"num_fewshot is 0, and '.*' says 5; .*`--allow num_fewshot`"):
        against(189, shots=0)
    assert against(189, "--allow", "num_fewshot", shots=0)[0] == 0
    with pytest.raises(ArgumentError, match="has no value of these --tasks and --metric; it has gsm8k: exact_match,strict"):
        against(189, "--metric", "accc")
    assert len(against(189, "--metric", "acc")[1]["metrics"]) == 2  # as the ready action asks
    with pytest.raises(ArgumentError, match="--max_changed needs the answers of the baseline"):
        against(189, "--max_changed", "1")


def test_a_plan_on_the_file_alone_agrees_with_exact_binomials(tmp_path, regress, capsys):
    (tmp_path / "small.yaml").write_text(FILE)
    words = "--baseline", tmp_path / "small.yaml", "--plan", "--drop", "0.02", "0.05", "0.1"
    rows = regress(*words)[1]["rows"]
    assert [(row["task"], row["problems"], row["drop"]) for row in rows] == [("gsm8k", 250, drop) for drop in (0.02, 0.05, 0.1)]
    assert [row["power"] for row in rows] == sorted(row["power"] for row in rows)
    assert rows[0]["power"] < 0.04 and 0.1 < rows[1]["power"] < 0.3 and 0.7 < rows[2]["power"] < 0.95
    assert rows[0]["problems_for_80"] is None and 1000 < rows[1]["problems_for_80"] < 2500
    assert main(["regress", *map(str, words), "--format", "md"]) == 0
    said = capsys.readouterr().out  # at most 173 of 250 are below 0.6955
    shares = [stats.binom.cdf(173, 250, 0.756 - drop) for drop in (0.05, 0)]
    assert f"{shares[0]:.0%} of drops of 0.05" in said and f"and {shares[1]:.0%} of unchanged runs" in said


@pytest.mark.parametrize(("text", "error"), [
    ("model_name: x", "field 'tasks' is missing"), ("- 1", "expected an object"), (": :", "configuration of vLLM"),
    (FILE.replace("0.756", "7.56"), "field 'tasks\\[0\\].metrics\\[0\\].value' is 7.56, expected a number from 0 to 1"),
    (FILE.replace("limit: 250", "limit: null"), "has no number of problems in its field 'limit'"),
])  # fmt: skip
def test_another_file_is_refused_in_one_line(tmp_path, text, error):
    (tmp_path / "a.yml").write_text(text)
    with pytest.raises((ArgumentError, ResultsError), match=error):
        main(["regress", "--baseline", str(tmp_path / "a.yml"), "--plan"])

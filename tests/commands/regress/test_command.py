"""Calls of `regress`: what is refused, what is never written over, and the exit status."""

import pytest
from helpers.results import TASK, draw_counts

from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import ArgumentError, ResultsError


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "regress needs RESULTS"),
        (["results"], "regress needs --baseline FILE"),
        (["a", "b", "--baseline", "b"], "RESULTS are 2 folders; one run is compared"),
        (["results", "--baseline", "b", "--confidence", "95"], "--confidence 95.0 is not a share"),
        (["results", "--baseline", "b", "--runs", "0"], "--runs 0 is not at least 1"),
        (["results", "--baseline", "b", "--base", "x"], "--base and --reference go together, and with --update"),
        (["no/results", "--baseline", "none.json", "--plan"], "'no/results' does not exist"),
    ],
)
def test_wrong_calls_are_one_line(words, text):
    with pytest.raises((ArgumentError, ResultsError), match=text):
        main(["regress", *words])


@pytest.mark.parametrize("limit", ["two", "5%", "1", "-0.1", "nan"])
def test_a_limit_is_a_share(capsys, limit):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["regress", "results", "--baseline", "b", f"--max-drop={limit}"])
    assert f"argument --max_drop: '{limit}' is not a share from 0 to below 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ['{"scores": {}, "decoding": {}, "checksum": ""}', "task: mine", ""], ids=["a calibration", "YAML", "an empty file"]
)
def test_no_file_but_a_baseline_is_overwritten(check, text):
    path = check.folder / "other"
    path.write_text(text)
    with pytest.raises(ArgumentError, match="is not a baseline; it was not changed"):
        main(["regress", str(check.folder / "good"), "--baseline", str(path), "--update"])
    assert path.read_text() == text
    with pytest.raises(ArgumentError, match=r"--junit .* is not a JUnit file of regress"):
        check({TASK: draw_counts(1)}, "--junit", str(path))


def test_the_same_run_differs_in_nothing_and_its_files_are_written_over(check, capsys):
    words = ["--junit", str(check.folder / "new.xml")]
    for _ in range(2):
        status, found = check({TASK: draw_counts(1)}, *words)
        task = found["tasks"][TASK]
        assert (status, found["verdict"], task["low"], task["high"]) == (0, "pass", 0, 0)
        assert task["note"] == "no sample differs"
    assert main(["regress", str(check.folder / "now"), "--baseline", str(check.folder / "b.json")]) == 0
    assert "the run is the baseline's own" in capsys.readouterr().err
    assert main(["regress", str(check.folder / "good"), "--baseline", str(check.folder / "b.json"), "--update"]) == 0
    with pytest.raises(ArgumentError, match="--metric is empty"):  # of a variable that is not set
        check({TASK: draw_counts(1)}, "--metric", "")


@pytest.mark.parametrize(("shift", "words", "status", "verdict"), [
    (0.0, [], 0, "pass"), (-0.15, [], 1, "regressed"), (-0.15, ["--max-drop", "0.3"], 0, "pass"),
    (-0.02, [], 0, "inconclusive"), (-0.02, ["--strict"], 1, "inconclusive"),
])  # fmt: skip
def test_the_status_follows_from_the_verdict(check, shift, words, status, verdict):
    got, found = check({TASK: draw_counts(2, shift)}, *words)
    assert (got, found["verdict"]) == (status, verdict)
    task = found["tasks"][TASK]
    assert task["low"] <= task["difference"] <= task["high"]
    assert task["difference"] == pytest.approx(task["now"] - task["baseline"])
    assert ("could tell" in task["note"]) == (verdict == "inconclusive")


def test_only_the_named_tasks_are_checked_and_unknown_metrics_are_one_line(check):
    extra = {TASK: draw_counts(1), "takeover_amc23": [1] * 40}
    with pytest.raises(ResultsError, match="takeover_amc23: missing in the baseline"):
        check(extra)
    assert check(extra, "--tasks", TASK)[0] == 0
    with pytest.raises(ArgumentError, match="--tasks takeover_amc24 is not there; known: takeover_amc23"):
        check(extra, "--tasks", "takeover_amc24")
    with pytest.raises(ArgumentError, match=r"--metric 'accc' is not known; did you mean 'acc'\?"):
        check({TASK: draw_counts(1)}, "--metric", "accc")
    with pytest.raises(ResultsError, match=r"has no metric 'pass@3' in both runs; it has acc, pass@1.*maj@8"):
        check({TASK: draw_counts(1)}, "--metric", "pass@3")

"""Calls of `regress`: what is refused, what is never written over, and a verdict as status, JSON, JUnit XML and summary."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.results import TASK, draw_counts, takeover, write_results

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.regress.baseline import read_baseline
from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.results.settings import list_differences


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "regress needs RESULTS"),
        (["results"], "regress needs --baseline FILE"),
        (["results", "--baseline", "b", "--confidence", "95"], "--confidence 95.0 is not a share"),
        (["results", "--baseline", "b", "--samples", "0"], "--samples 0 is not at least 1"),
        (["no/results", "--baseline", "none.json", "--plan"], "'no/results' does not exist"),
    ],
)
def test_wrong_calls_are_one_line(words, text):
    with pytest.raises((ArgumentError, ResultsError), match=text):
        main(["regress", *words])


@pytest.mark.parametrize(("option", "limits", "text"), [
    ("drop", ["5%", "1", "nan"], "is not a share from 0 to below 1"),
    ("changed", ["-1", "1.5", "nan", "x"], "is neither a number of answers nor a share below 1"),
])  # fmt: skip
def test_a_limit_is_a_share_or_a_number_of_answers(capsys, option, limits, text):
    for limit in limits:
        with pytest.raises(SystemExit, match=r"^2$"):
            main(["regress", "results", "--baseline", "b", f"--max-{option}={limit}"])
        assert f"argument --max_{option}: '{limit}' {text}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['{"scores": {}, "decoding": {}, "checksum": ""}', ""], ids=["a calibration", "an empty file"])
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


def test_several_metrics_are_judged_in_one_call_and_junit_and_github_s_summary_say_so(check, monkeypatch):
    summary, junit = check.folder / "summary.md", check.folder / "out" / "junit.xml"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    status, found = check({TASK: draw_counts(2, -0.15)}, "--metric", "unparsed", "acc,pass@4", "--junit", str(junit))
    assert (status, found["verdict"]) == (1, "regressed")
    verdicts = {metric: one["tasks"][TASK]["verdict"] for metric, one in found["metrics"].items()}
    assert verdicts == {"unparsed": "pass", "acc": "regressed", "pass@4": "regressed"}
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    assert suite.find("testcase/failure").get("message").startswith("regressed: -0.")
    text = summary.read_text()
    assert text.startswith("before\n### lm-eval-takeover regress: regressed") and f"| {TASK} | regressed |" in text


def test_a_stranger_s_task_is_well_formed_in_junit_and_no_command_in_a_log(tmp_path, regress, capsys):
    """GitHub reads a line that begins with `::` as a command; U+FFFE is in no XML."""
    task, path = "::error::a\ufffeb\u202e", tmp_path / "junit.xml"
    for seed, name in enumerate(("good", "now")):
        write_results(tmp_path / name, {task: draw_counts(seed)}, run=takeover(seed=seed))
    words = ["--baseline", str(tmp_path / "b.json")]
    assert main(["regress", str(tmp_path / "good"), *words, "--update"]) == 0
    assert main(["regress", str(tmp_path / "now"), *words, "--junit", str(path)]) in (0, 1)
    printed = capsys.readouterr()
    assert ElementTree.parse(path).find("testcase").get("classname") == r"\::error::a\ufffeb\u202e"
    assert not any(line.strip().startswith("::") for line in (printed.out + printed.err).splitlines())


def test_settings_that_differ_are_told_in_words():
    lines = list_differences({"schema": 2, "base": f"blake2b:{'a1' * 32}", "tau": 1.5}, {"tau": 1.5})
    assert lines == ["base: files a1a1a1a1… -> none", "schema (the rule that draws tokens): 2 -> none"]


def test_a_baseline_is_small_and_edits_of_it_are_noticed(check):
    path = check.folder / "b.json"
    assert path.stat().st_size < 100 * 300
    task = read_baseline(path).tasks[TASK]
    assert np.array_equal(task.problems.values["acc"] * 8, draw_counts(1))
    assert np.array_equal(task.problems.values["pass@8"], np.array(draw_counts(1)) > 0)
    content = json.loads(path.read_text())
    content["tasks"][TASK]["runs"][0]["counts"]["acc"][0] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(ResultsError, match="field 'checksum' does not agree with the content"):
        read_baseline(path)
    path.write_text('{"schema": 1}')
    with pytest.raises(ResultsError, match="field 'schema' is 1, expected 2"):
        read_baseline(path)
    with pytest.raises(ResultsError, match="does not exist; write it from a good run with --update"):
        read_baseline(check.folder / "none.json")
    folder = write_results(check.folder / "means", {TASK: draw_counts(1)}, run=takeover(), logged=False)
    with pytest.raises(ResultsError, match="run with --log_samples"):
        main(["regress", str(folder), "--baseline", str(check.folder / "b.json")])

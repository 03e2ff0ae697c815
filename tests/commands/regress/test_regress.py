"""`regress`: what is refused; verdicts by interval, of changed answers and of fixed values; what is written and planned."""

import json
import shutil
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.results import TASK, draw_counts, takeover, write_exact, write_results
from scipy import stats

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.regress.baseline import read_baseline
from lm_eval_takeover.errors import ArgumentError, ResultsError


@pytest.fixture
def regress(answered):
    """`regress` with these words: `(status, JSON)`."""
    return partial(answered, "regress", statuses=(0, 1))


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A good run, and its baseline."""
    folder = tmp_path_factory.mktemp("baseline")
    write_results(folder / "good", {TASK: draw_counts(1)}, run=takeover())
    assert main(["regress", str(folder / "good"), "--baseline", str(folder / "b.json"), "--update"]) == 0
    return folder


@pytest.fixture
def check(tmp_path, made, regress):
    """Writes a run, and compares it with the baseline of another: `(status, JSON)`. Their folder is `check.folder`."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)

    def compare(correct, *words, **written):
        folder = write_results(tmp_path / "now", correct, **{"run": takeover(seed=1), **written})
        return regress(folder, "--baseline", tmp_path / "b.json", *words)

    compare.folder = tmp_path
    return compare


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "regress needs RESULTS"),
        (["results"], "regress needs --baseline FILE"),
        (["no/results", "--plan"], "'no/results' does not exist"),
        (["results", "--baseline", "none.json", "--plan"], "leave one of them out"),
    ],
)
def test_wrong_calls_are_one_line(words, text):
    with pytest.raises((ArgumentError, ResultsError), match=text):
        main(["regress", *words])


GOOD = {TASK: draw_counts(1)}
MORE = GOOD | {"takeover_amc23": [1] * 40}


@pytest.mark.parametrize(("correct", "words", "written", "text"), [
    (MORE, [], {}, "takeover_amc23: missing in the baseline"),
    (MORE, ["--tasks", "takeover_amc24"], {}, "--tasks takeover_amc24 is not there; known: takeover_amc23"),
    (GOOD, ["--metric", "accc"], {}, r"--metric 'accc' is not known; did you mean 'acc'\?"),
    (GOOD, ["--metric", "takeovers"], {}, "--metric 'takeovers' is not known"),  # a count, and no share
    (GOOD, ["--metric", "pass@3"], {}, r"has no metric 'pass@3' in both runs; it has acc, pass@1.*maj@8"),
    (GOOD, ["--metric", ","], {}, "--metric is empty"),
    (GOOD, ["--allow", "polcy"], {}, r"--allow 'polcy' is not a setting of these runs; did you mean 'policy'\?"),
    (GOOD, ["--max_changed", "0"], {}, "--max_changed: takeover_math500 is sampled, and the baseline has another seed"),
    (GOOD, [], {"logged": False}, "run with --log_samples"),
    ({TASK: draw_counts(1)[:290]}, [], {}, "the baseline has 300 problems, the run 290; 10 are missing in the run, and"),
    ({TASK: draw_counts(1, size=310)}, [], {}, "the run 310; 10 are missing in the baseline"),
])  # fmt: skip
def test_what_cannot_be_compared_is_one_line(check, correct, words, written, text):
    with pytest.raises((ArgumentError, ResultsError), match=text):
        check(correct, *words, **written)


def test_a_limit_is_a_share_or_a_number_of_answers(capsys):
    drop, changed = "is not a share from 0 to below 1", "is not a number of answers or a share below 1"
    for option, limit, text in (
        ("max_drop", "5%", drop),
        ("max_drop", "1", drop),
        ("max_changed", "-1", changed),
        ("max_changed", "1.5", changed),
        ("confidence", "95", "is not a share from 0.5 to below 1"),
        ("samples", "0", "is not a whole number of at least 1"),
        ("drop", "nan", "is not a share between 0 and 1"),
    ):
        with pytest.raises(SystemExit, match=r"^2$"):
            main(["regress", "results", "--baseline", "b", f"--{option}={limit}"])
        assert f"argument --{option}: '{limit}' {text}" in capsys.readouterr().err


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
        assert (check.folder / "new.xml").exists()
    assert main(["regress", str(check.folder / "now"), "--baseline", str(check.folder / "b.json")]) == 0
    assert "the run is the baseline's own" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="--metric 'accc' is not known"):
        check({TASK: draw_counts(1)}, *words, "--metric", "accc")
    assert not (check.folder / "new.xml").exists()  # what it said was of another call
    assert main(["regress", str(check.folder / "good"), "--baseline", str(check.folder / "b.json"), "--update"]) == 0


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


def test_a_change_either_way_regresses_beyond_its_limit(check):
    for share, verdict in ((0.01, "pass"), (0.05, "regressed")):
        found = check(GOOD, "--metric", "no_answer", shares={"no_answer": share})[1]["tasks"][TASK]
        assert (found["verdict"], found["difference"]) == (verdict, pytest.approx(share))


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


def test_a_stranger_s_task_is_well_formed_in_junit_and_no_command_in_a_log(tmp_path, capsys):
    """GitHub reads a line that begins with `::` as a command; U+FFFE is in no XML."""
    run = write_results(tmp_path / "run", {"::error::a\ufffeb\u202e": draw_counts(1)}, run=takeover())
    assert main(["regress", str(run), "--baseline", str(run), "--junit", str(tmp_path / "junit.xml")]) == 0
    printed = capsys.readouterr()
    assert ElementTree.parse(tmp_path / "junit.xml").find("testcase").get("classname") == r"\::error::a\ufffeb\u202e"
    assert not any(line.strip().startswith("::") for line in (printed.out + printed.err).splitlines())


def test_a_baseline_is_small_and_edits_of_it_are_noticed(check):
    path = check.folder / "b.json"
    assert path.stat().st_size < 100 * 300
    task = read_baseline(path).tasks[TASK]
    assert np.array_equal(task.problems.values["acc"] * 8, draw_counts(1))
    assert np.array_equal(task.problems.values["pass@8"], np.array(draw_counts(1)) > 0)
    content = json.loads(path.read_text())
    content["tasks"][TASK]["counts"]["acc"][0] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(ResultsError, match="field 'checksum' does not agree with the content"):
        read_baseline(path)
    with pytest.raises(ResultsError, match="does not exist; write it from a good run with --update"):
        read_baseline(check.folder / "none.json")


def test_the_average_over_tasks_is_judged_and_tells_more_than_its_tasks(tmp_path, regress):
    tasks = {"takeover_math500": 60, "takeover_amc23": 40, "takeover_aime24": 30, "takeover_demo": 50}
    for name, seed, shift in (("old", 1, 0.0), ("new", 2, -0.1)):
        correct = {task: draw_counts(seed + place, shift, size) for place, (task, size) in enumerate(tasks.items())}
        write_results(tmp_path / name, correct, run=takeover(seed=seed))
    main(["regress", str(tmp_path / "old"), "--baseline", str(tmp_path / "b.json"), "--update"])
    words = [str(tmp_path / "new"), "--baseline", str(tmp_path / "b.json"), "--max_drop", "0"]
    status, found = regress(*words)
    shown = [found["tasks"][task] for task in list(tasks)[:3]]  # the demo is not mathematical
    average = found["average"]
    assert average["difference"] == pytest.approx(np.mean([task["difference"] for task in shown]))
    assert average["high"] - average["low"] < min(task["high"] - task["low"] for task in shown)
    assert (status, average["verdict"]) == (1, "regressed")
    assert average["p_holm"] < min(task["p_holm"] for task in shown)
    corrected = [task["p_holm"] / task["p_value"] for task in shown]
    assert min(corrected) >= 1 and max(corrected) > 1.9


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"decoding": {"temperature": 0.7}}, "temperature: 0.6 -> 0.7"),
        ({"run": takeover(tau=9.0)}, "tau: 1.5 -> 9.0"),
        ({"model_args": "max_length=99"}, "model_args.max_length: none -> 99"),
        ({"verifier": "math_verify"}, "verifier: none -> math_verify"),
    ],
)
def test_other_settings_are_an_error_that_lists_them_unless_allowed(check, written, text):
    with pytest.raises(ArgumentError, match="settings differ from --baseline") as caught:
        check({TASK: draw_counts(2)}, **written)
    assert text in str(caught.value)
    name = text.partition(":")[0]
    _, found = check({TASK: draw_counts(2)}, "--allow", name, **written)
    assert any(line.startswith(f"{name}:") or f" {name}:" in line for line in found["settings"]["differences_allowed"])


def test_another_seed_batch_size_or_run_dir_is_no_other_setting(check):
    run = takeover(seed=7, run_dir="elsewhere", block_size=4)
    assert check({TASK: draw_counts(2)}, run=run, model_args="batch_size=3,seed=7,run_dir=elsewhere")[0] == 0


def test_problems_on_one_side_alone_are_an_error_unless_they_are_few(check):
    found = check({TASK: draw_counts(1)[:295]})[1]["tasks"][TASK]
    assert found["baseline"] == found["now"] == pytest.approx(np.mean(draw_counts(1)[:295]) / 8)
    assert check(MORE, "--tasks", TASK)[1]["verdict"] == "pass"


def test_a_plan_prints_the_power_of_each_drop(check, regress):
    status, found = regress("--baseline", check.folder / "b.json", "--plan", "--drop", "0.02", "0.1")
    allowed, large = found["rows"]
    assert status == 0
    for row, drop in ((allowed, 0.02), (large, 0.1)):
        assert (row["task"], row["problems"], row["samples"], row["drop"]) == (TASK, 300, 8, drop)
    assert allowed["power"] < 0.05 and large["power"] > 0.95  # the allowed drop itself, and far beyond it
    assert allowed["problems_for_80"] is None and 20 < large["problems_for_80"] < 300


@pytest.mark.parametrize(("worse", "better", "most", "verdict"), [
    (3, 0, "0", "inconclusive"), (3, 0, "3", "pass"), (6, 0, "0.15", "pass"), (6, 0, "0.1", "regressed"),
    (0, 6, "1", "inconclusive"), (6, 5, "2", "inconclusive"), (0, 0, "0", "pass"),
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
    assert (task["high"] < 0) == (exact < 0.05)  # the interval is one-sided, as the test is
    told = f"{worse + better} of 40 problems changed their verdict" + (", all got worse (" if worse and not better else "")
    assert told in task["note"]
    main(["regress", str(runs[1]), "--baseline", str(runs[0])])
    assert (f"gsm8k: {told}" in capsys.readouterr().err) == (worse > 0)  # without being asked


def test_a_baseline_file_keeps_the_seed_and_only_equal_numbers_are_compared(check, tmp_path):
    counts = np.array(draw_counts(1))
    lower = np.where(np.arange(300) < 20, np.maximum(counts - 1, 0), counts).tolist()
    words = "--max_changed", "0"
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
    assert tests[1]["note"].startswith("2 of 40 problems")
    assert [found["tasks"]["gsm8k"]["difference"] for found in (alone, grouped)] == pytest.approx([-0.05] * 2)
    with pytest.raises(Exception, match=r"the document has no value in 'kind' \(--group\); its fields: question, family"):
        regress(*words, "--group", "kind")


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
    assert [task["low"] + 0.756, task["high"] + 0.756] == pytest.approx([*wilson], abs=2e-3)
    assert ("could tell" in task["note"]) == (verdict == "inconclusive")


def test_a_metric_of_the_file_is_chosen_and_other_examples_are_refused(against, capsys):
    assert list(against(189, "--metric", "exact_match,flexible-extract")[1]["metrics"]) == ["exact_match,flexible-extract"]
    with pytest.raises(ArgumentError, match=r"num_fewshot is 0, and '.*' says 5; .*`--allow num_fewshot`"):
        against(189, shots=0)
    assert against(189, "--allow", "num_fewshot", shots=0)[0] == 0
    for words in (["--metric", "acc", "accc"], ["--tasks", "gsm8k", "gsm9k"]):  # one that is known beside it
        with pytest.raises(ArgumentError, match=f"{words[0]} '{words[2]}' has no value in '.*'; did you mean '{words[1]}'"):
            against(189, *words)
    assert len(against(189, "--metric", "acc")[1]["metrics"]) == 2  # as the ready action asks
    with pytest.raises(ArgumentError, match="--max_changed needs the answers of the baseline"):
        against(189, "--max_changed", "1")


@pytest.mark.parametrize(("text", "error"), [
    ("model_name: x", "field 'tasks' is missing"), ("- 1", "expected an object"), (": :", "configuration of vLLM"),
    (FILE.replace("0.756", "7.56"), "field 'tasks\\[0\\].metrics\\[0\\].value' is 7.56, expected a number from 0 to 1"),
    (FILE, "--plan needs the answers of the baseline, and .* has none"),
])  # fmt: skip
def test_another_file_is_refused_in_one_line(tmp_path, text, error):
    (tmp_path / "a.yml").write_text(text)
    with pytest.raises((ArgumentError, ResultsError), match=error):
        main(["regress", "--baseline", str(tmp_path / "a.yml"), "--plan"])

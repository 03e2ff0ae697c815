"""`regress`: verdicts by interval, what is refused, what is written, and plans that hold."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from difficulties import table3
from helpers.results import takeover, write_results
from regression_alarms import NONE, RELATIVE, measure, rate_alarms, rate_quiet

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.regress.baseline import Scored, Side, read_baseline
from lm_eval_takeover.commands.regress.planning import Design, draw_difficulties, lower, measure_margins
from lm_eval_takeover.commands.regress.verdicts import Limit, compare
from lm_eval_takeover.errors import ArgumentError, ResultsError

TASK = "takeover_math500"


def counts(seed, shift=0.0, size=300):
    chances = np.random.default_rng(0).beta(0.8, 0.8, size)
    return np.random.default_rng(seed).binomial(8, np.clip(chances + shift, 0, 1)).tolist()


@pytest.fixture
def check(tmp_path, capsys):
    """Writes a run, and compares it with the baseline of another: `(status, JSON)`."""
    write_results(tmp_path / "good", {TASK: counts(1)}, run=takeover())
    assert main(["regress", str(tmp_path / "good"), "--baseline", str(tmp_path / "b.json"), "--update"]) == 0
    capsys.readouterr()

    def compare(correct, *words, **written):
        folder = write_results(tmp_path / "now", correct, **{"run": takeover(seed=1), **written})
        status = main(["regress", str(folder), "--baseline", str(tmp_path / "b.json"), "--format", "json", *words])
        return status, json.loads(capsys.readouterr().out)

    compare.folder = tmp_path
    return compare


def test_several_metrics_are_judged_in_one_call(check):
    status, found = check(
        {TASK: counts(2, -0.15)}, "--metric", "unparsed", "acc,pass@4", "--junit", str(check.folder / "j.xml")
    )
    assert (status, found["verdict"]) == (1, "regressed")
    verdicts = {metric: one["tasks"][TASK]["verdict"] for metric, one in found["metrics"].items()}
    assert verdicts == {"unparsed": "pass", "acc": "regressed", "pass@4": "regressed"}
    suite = ElementTree.parse(check.folder / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")


@pytest.mark.parametrize("samples", [1, 3])
def test_a_task_of_ones_own_is_gated_with_the_pass_at_k_that_it_has(tmp_path, capsys, samples):
    for name, correct in (("good", samples), ("now", 0)):
        write_results(tmp_path / name, {"own": [correct] * 30}, run=takeover(), samples=samples)
    baseline = str(tmp_path / "b.json")
    assert main(["regress", str(tmp_path / "good"), "--baseline", baseline, "--update"]) == 0
    assert "Small-Base, own (30 problems)" in capsys.readouterr().out
    words = ["regress", str(tmp_path / "now"), "--baseline", baseline, "--metric", "acc", f"pass@{samples}"]
    assert main([*words, "--format", "json"]) == 1
    tasks = [one["tasks"]["own"] for one in json.loads(capsys.readouterr().out)["metrics"].values()]
    assert [(one["baseline"], one["now"]) for one in tasks] == [(1.0, 0.0)] * 2
    with pytest.raises(
        ResultsError, match=f"own has no metric 'pass@8' in both runs; it has acc, pass@1.*maj@{samples}"
    ):
        main([*words[:-1], "pass@8"])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("cal.json", '{"scores": {}, "decoding": {}}', "a calibration, not a baseline"),
        ("task.yaml", "task: mine", "a YAML file, not a baseline"),
        ("other.json", "[1]", "another JSON file, not a baseline"),
    ],
)
def test_no_file_but_a_baseline_is_overwritten(check, name, text, said):
    path = check.folder / name
    path.write_text(text)
    with pytest.raises(ArgumentError, match=f"{said}; it was not changed"):
        main(["regress", str(check.folder / "good"), "--baseline", str(path), "--update"])
    assert path.read_text() == text
    with pytest.raises(ArgumentError, match=f"--junit .*{said.partition(',')[0]}, not a JUnit file of regress"):
        check({TASK: counts(1)}, "--junit", str(path))
    words = ["--junit", str(check.folder / "new.xml")]
    assert [check({TASK: counts(1)}, *words)[0] for _ in range(2)] == [0, 0]
    assert main(["regress", str(check.folder / "good"), "--baseline", str(check.folder / "b.json"), "--update"]) == 0


def test_a_setting_that_is_allowed_exists(check):
    with pytest.raises(ArgumentError, match=r"--allow 'polcy' is not a setting of these runs; did you mean 'policy'\?"):
        check({TASK: counts(1)}, "--allow", "polcy")


def test_the_same_run_differs_in_nothing(check):
    status, found = check({TASK: counts(1)})
    task = found["tasks"][TASK]
    assert (status, found["verdict"], task["low"], task["high"]) == (0, "pass", 0, 0)
    assert task["note"] == "no sample differs"


@pytest.mark.parametrize(
    ("shift", "words", "status", "verdict"),
    [
        (0.0, [], 0, "pass"),
        (-0.15, [], 1, "regressed"),
        (-0.15, ["--max-drop", "0.3"], 0, "pass"),
        (-0.15, ["--max-drop", "50%"], 0, "pass"),
        (-0.15, ["--max-drop", "5%"], 1, "regressed"),
        (-0.02, [], 0, "inconclusive"),
        (-0.02, ["--strict"], 1, "inconclusive"),
    ],
)
def test_verdicts_are_by_the_interval_of_the_drop(check, shift, words, status, verdict):
    got, found = check({TASK: counts(2, shift)}, *words)
    assert (got, found["verdict"]) == (status, verdict)
    task = found["tasks"][TASK]
    assert task["low"] <= task["difference"] <= task["high"]
    assert task["difference"] == pytest.approx(task["now"] - task["baseline"])
    assert ("could tell" in task["note"]) == (verdict == "inconclusive")


def test_a_point_beyond_the_limit_is_no_regression_where_the_interval_is_not(check):
    _, found = check({TASK: counts(2, -0.03)})
    task = found["tasks"][TASK]
    limit = -(task["difference"] + task["high"]) / 2
    assert -task["difference"] > limit
    assert check({TASK: counts(2, -0.03)}, "--max_drop", str(limit))[1]["verdict"] == "inconclusive"


def test_several_tasks_are_corrected_by_holm_and_the_worst_verdict_is_the_runs(tmp_path, capsys):
    old = {"takeover_amc23": [4] * 40, "takeover_aime24": [8] * 30}
    write_results(tmp_path / "a", old, run=takeover())
    write_results(tmp_path / "b", {"takeover_amc23": [4] * 40, "takeover_aime24": [0] * 30}, run=takeover())
    main(["regress", str(tmp_path / "a"), "--baseline", str(tmp_path / "b.json"), "--update"])
    capsys.readouterr()
    assert main(["regress", str(tmp_path / "b"), "--baseline", str(tmp_path / "b.json"), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == found["tasks"]["takeover_aime24"]["verdict"] == "regressed"
    assert all(task["p_holm"] >= task["p_value"] for task in found["tasks"].values())


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"decoding": {"temperature": 0.7}}, "temperature: 0.6 -> 0.7"),
        ({"run": takeover(tau=9.0)}, "tau: 1.5 -> 9.0"),
        ({"run": takeover(guide="acme/Other")}, "guide: acme/Large@"),
        ({"chat_template_sha": "abc"}, "chat_template: none -> abc"),
        ({"model_args": "max_length=99"}, "model_args.max_length: none -> 99"),
        ({"config": {"limit": 4.0}}, "limit: none -> 4.0"),
        ({"verifier": "math_verify"}, "verifier: none -> math_verify"),
    ],
)
def test_other_settings_are_an_error_that_lists_them_unless_allowed(check, written, text):
    with pytest.raises(ArgumentError, match="settings differ from --baseline") as caught:
        check({TASK: counts(2)}, **written)
    assert text in str(caught.value)
    name = text.partition(":")[0]
    _, found = check({TASK: counts(2)}, "--allow", name, **written)
    assert any(line.startswith(f"{name}:") or f" {name}:" in line for line in found["settings"]["differences_allowed"])


def test_another_seed_batch_size_or_run_dir_is_no_other_setting(check):
    run = takeover(seed=7, run_dir="elsewhere", block_size=4)
    assert check({TASK: counts(2)}, run=run, model_args="batch_size=3,seed=7,run_dir=elsewhere")[0] == 0


def test_problems_samples_and_tasks_on_one_side_alone_are_an_error(check):
    with pytest.raises(ResultsError, match=r"takeover_math500: 10 of 300 problems are missing in the run \(doc_hash "):
        check({TASK: counts(1)[:290]})
    with pytest.raises(ResultsError, match="5 of 305 problems are missing in the baseline"):
        check({TASK: counts(1, size=305)})
    with pytest.raises(ResultsError, match="takeover_amc23: missing in the baseline"):
        check({TASK: counts(1), "takeover_amc23": [1] * 40})
    assert check({TASK: counts(1), "takeover_amc23": [1] * 40}, "--tasks", TASK)[0] == 0


def test_a_run_without_samples_is_refused(check):
    folder = write_results(check.folder / "means", {TASK: counts(1)}, run=takeover(), logged=False)
    with pytest.raises(ResultsError, match="run with --log_samples"):
        main(["regress", str(folder), "--baseline", str(check.folder / "b.json")])


def test_a_baseline_is_small_and_edits_of_it_are_noticed(check):
    path = check.folder / "b.json"
    assert path.stat().st_size < 100 * 300
    task = read_baseline(path).tasks[TASK]
    assert np.array_equal(task.problems.values["acc"] * 8, counts(1))
    assert np.array_equal(task.problems.values["pass@8"], np.array(counts(1)) > 0)
    content = json.loads(path.read_text())
    content["tasks"][TASK]["runs"][0]["counts"]["acc"][0] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(ResultsError, match="field 'checksum' does not agree with the content"):
        read_baseline(path)
    path.write_text(json.dumps({"schema": 9}))
    with pytest.raises(ResultsError, match="field 'schema' is 9, known up to 2"):
        read_baseline(path)
    with pytest.raises(ResultsError, match="does not exist; write it from a good run with --update"):
        read_baseline(check.folder / "none.json")


def test_junit_and_the_summary_of_github_say_what_the_table_says(check, monkeypatch):
    summary, junit = check.folder / "summary.md", check.folder / "out" / "junit.xml"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    check({TASK: counts(2, -0.15)}, "--junit", str(junit))
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert suite.find("testcase/failure").get("message").startswith("regressed: -0.")
    text = summary.read_text()
    assert text.startswith("before\n### lm-eval-takeover regress: regressed") and f"| {TASK} | acc |" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "regress needs RESULTS"),
        (["results"], "regress needs --baseline FILE"),
        (["results", "--baseline", "b", "--metric", "accc"], "--metric 'accc' is not known; did you mean 'acc'?"),
        (["results", "--baseline", "b", "--max-drop", "two"], "--max_drop 'two' is not a share"),
        (["results", "--baseline", "b", "--confidence", "95"], "--confidence 95.0 is not a share"),
    ],
)
def test_wrong_calls_are_one_line(words, text):
    with pytest.raises(ArgumentError, match=text.replace("?", r"\?")):
        main(["regress", *words])


def test_a_plan_prints_the_power_of_each_drop(check, capsys):
    words = [
        "regress",
        "--baseline",
        str(check.folder / "b.json"),
        "--plan",
        "--drop",
        "0.02",
        "0.1",
        "--format",
        "json",
    ]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["task"], row["problems"], row["samples"], row["drop"]) for row in rows] == [
        (TASK, 300, 8, 0.02),
        (TASK, 300, 8, 0.1),
    ]
    assert rows[0]["power"] < 0.05 and rows[1]["power"] > 0.95  # the allowed drop itself, and far beyond it
    assert rows[0]["problems_for_80"] is None and 20 < rows[1]["problems_for_80"] < 300


def test_planted_drops_shift_all_log_odds_by_the_same_amount():
    chances = np.random.default_rng(0).beta(1, 1, (3, 50))
    lowered = lower(chances, 0.1, lambda p: p)
    assert lowered.mean(axis=1) == pytest.approx(chances.mean(axis=1) - 0.1, abs=1e-5)
    shifts = np.log(lowered / (1 - lowered)) - np.log(chances / (1 - chances))
    assert shifts == pytest.approx(np.broadcast_to(shifts[:, :1], shifts.shape), abs=1e-6)


def test_problems_that_were_never_solved_may_yet_be():
    drawn = draw_difficulties(np.random.default_rng(0), np.array([0.0] * 20 + [0.5] * 20), 8)
    assert 0 < drawn[:, :20].mean() < drawn[:, 20:].mean() == pytest.approx(0.5, abs=0.1)


def test_equal_models_alarm_seldom_and_planted_drops_are_found_as_planned(check):
    """A thousand comparisons; `benchmarks/regression_alarms.py` has ten thousand of more kinds."""
    generator, beta = np.random.default_rng(3), table3()[2, "AMC23"]
    alarms, _, points = rate_alarms(generator, beta, "AMC23", 0.0, NONE, 1000)
    assert alarms <= 0.04 and points > 0.3
    assert rate_alarms(generator, beta, "AMC23", 0.0, RELATIVE, 1000)[0] <= 0.02
    assert rate_alarms(generator, beta, "AMC23", 0.1, NONE, 1000)[0] >= 0.8


@pytest.mark.parametrize("metric", ["acc", "pass@8", "maj@8"])
def test_simulated_verdicts_are_those_of_the_check(metric):
    generator = np.random.default_rng(4)
    chances = generator.beta(0.5, 0.5, 60)
    old, new = measure(generator, chances, "old", TASK), measure(generator, chances, "new", TASK)
    values = [run.tasks[TASK].problems.values[metric][np.newaxis] for run in (old, new)]
    margins = measure_margins(*values, Design(metric, Limit(0.02), 0.95, 8), 8)
    found = compare(old, new, metric, Limit(0.02), 0.95)[TASK]
    assert margins.p_below()[0] == pytest.approx(found.p_value)


def test_thirty_runs_with_a_history_alarm_as_seldom_as_one():
    """Without it, a quarter of all baselines see a false alarm."""
    _, _, _, alone, together = rate_quiet(np.random.default_rng(5), [(table3()[2, "AMC23"], 40)], NONE, 1, 400)
    assert alone > 0.15
    assert together <= 0.05


@pytest.mark.parametrize("metric", ["pass@8", "maj@8"])
def test_no_change_of_0_or_1_is_as_uncertain_as_one_observation_is(check, metric):
    """300 problems that all count 0 or 1: their 8 samples do not make them 2,400 observations."""
    found = check({TASK: [8 - c if c in (0, 8) else c for c in counts(1)]}, "--metric", metric, "--max_drop", "0.9")[1]
    same = check({TASK: [min(c + 1, 8) if c > 4 else c for c in counts(1)]}, "--metric", metric)[1]["tasks"][TASK]
    assert same["difference"] == 0 and same["high"] > 1.96 * (2 / 299 / 300) ** 0.5 > 0.009
    assert found["tasks"][TASK]["low"] <= found["tasks"][TASK]["difference"]


def test_a_change_beyond_its_limit_regresses_where_its_interval_does():
    """The p-value of a change is two-sided already."""
    generator = np.random.default_rng(6)
    run = measure(generator, np.full(40, 0.1), "a", TASK)
    problems = run.tasks[TASK].runs[0].problems
    verdicts = set()
    for cut in range(1, 30):
        no_answer = np.zeros(40)
        no_answer[:cut] = 2 / 8
        sides = []
        for name, values in (("old", np.zeros(40)), ("new", no_answer)):
            changed = replace(problems, values=problems.values | {"no_answer": values}, texts=name)
            sides.append(replace(run, tasks={TASK: Side((Scored(changed),), {})}))
        found = compare(*sides, "no_answer", Limit(0.02), 0.95)[TASK]
        verdicts.add(found.verdict)
        assert found.p_value == found.p_holm
        assert (found.verdict == "regressed") == (found.low > 0.02)
    assert verdicts == {"regressed", "inconclusive", "pass"} - ({"pass"} - verdicts)


def test_the_average_over_tasks_is_judged_and_tells_more_than_its_tasks(tmp_path, capsys):
    tasks = {"takeover_math500": 60, "takeover_amc23": 40, "takeover_aime24": 30, "takeover_demo": 50}
    for name, seed, shift in (("old", 1, 0.0), ("new", 2, -0.1)):
        correct = {task: counts(seed + place, shift, size) for place, (task, size) in enumerate(tasks.items())}
        write_results(tmp_path / name, correct, run=takeover(seed=seed))
    words = ["--baseline", str(tmp_path / "b.json")]
    main(["regress", str(tmp_path / "old"), *words, "--update"])
    capsys.readouterr()
    assert main(["regress", str(tmp_path / "new"), *words, "--format", "json", "--max_drop", "0"]) == 1
    found = json.loads(capsys.readouterr().out)
    average, shown = (
        found["average"],
        [found["tasks"][task] for task in list(tasks)[:3]],
    )  # the demo is not mathematical
    assert average["difference"] == pytest.approx(np.mean([task["difference"] for task in shown]))
    assert average["high"] - average["low"] < min(task["high"] - task["low"] for task in shown)
    assert average["verdict"] == "regressed" and average["p_holm"] < min(task["p_holm"] for task in shown)
    assert main(["regress", str(tmp_path / "new"), *words, "--average_only", "--max_drop", "0"]) == 1
    said = capsys.readouterr().out
    assert "average" in said and "takeover_amc23" not in said


def test_a_baseline_of_several_seeds_is_their_mean(tmp_path, capsys):
    for seed in (1, 2, 3):
        write_results(tmp_path / str(seed), {TASK: counts(seed)}, run=takeover(seed=seed))
    folders = [str(tmp_path / str(seed)) for seed in (1, 2, 3)]
    one, three = str(tmp_path / "one.json"), str(tmp_path / "three.json")
    main(["regress", folders[0], "--baseline", one, "--update"])
    assert main(["regress", *folders, folders[1], "--baseline", three, "--update"]) == 0
    assert "3 runs, takeover_math500 (300 problems)" in capsys.readouterr().out
    side = read_baseline(tmp_path / "three.json").tasks[TASK]
    runs = np.array([counts(seed) for seed in (1, 2, 3)])
    assert np.allclose(side.problems.values["acc"], runs.mean(axis=0) / 8)
    assert np.allclose(side.problems.values["pass@8"], (runs > 0).mean(axis=0))
    write_results(tmp_path / "now", {TASK: counts(4)}, run=takeover(seed=4))
    widths = []
    for file in (one, three):
        main(["regress", str(tmp_path / "now"), "--baseline", file, "--format", "json"])
        found = json.loads(capsys.readouterr().out)["tasks"][TASK]
        widths.append(found["high"] - found["low"])
    assert widths[1] == pytest.approx(widths[0] * ((1 + 1 / 3) / 2) ** 0.5, rel=0.1)
    write_results(tmp_path / "other", {TASK: counts(5)}, run=takeover(tau=9.0, seed=5))
    with pytest.raises(ArgumentError, match=r"is not another seed of .*tau: 1.5 -> 9.0"):
        main(["regress", folders[0], str(tmp_path / "other"), "--baseline", one, "--update"])
    with pytest.raises(ArgumentError, match="RESULTS are 3 folders; one run is compared"):
        main(["regress", *folders, "--baseline", one])


def test_runs_in_a_history_share_one_error_rate(check, capsys):
    history = check.folder / "h" / "history.jsonl"

    def run(seed, *words):
        return check({TASK: counts(seed, -0.08)}, "--max_drop", "0.03", *words)[1]["tasks"][TASK]

    alone, first = run(2), run(2, "--history", str(history))
    assert alone["p_holm"] < first["p_holm"] < 30 * alone["p_holm"]
    assert (alone["low"], alone["high"]) == (first["low"], first["high"])
    again = run(2, "--history", str(history), "--runs", "1")  # the same texts count once
    assert again["p_holm"] == alone["p_holm"]
    write_results(check.folder / "now", {TASK: counts(3)}, run=takeover(seed=3))
    words = [
        "regress",
        str(check.folder / "now"),
        "--baseline",
        str(check.folder / "b.json"),
        "--history",
        str(history),
    ]
    main([*words, "--runs", "1"])
    assert "2 runs against this baseline, 1 were planned" in capsys.readouterr().err
    main(words)
    assert "run 2 of 30 against this baseline" in capsys.readouterr().err
    assert len(history.read_text().splitlines()) == 4
    history.write_text("{}")
    with pytest.raises(ResultsError, match=r"history.jsonl', line 1: field 'baseline' is missing"):
        main(words)


def test_a_plan_says_how_often_nothing_is_found_where_nothing_changed(check, capsys):
    assert main(["regress", "--baseline", str(check.folder / "b.json"), "--plan", "--drop", "0.05"]) == 0
    said = capsys.readouterr().out
    assert "any of 30:" in said and "--history" in said
    assert "More samples of each problem buy as much power as more problems" in said
    main(["regress", "--baseline", str(check.folder / "b.json"), "--plan", "--max_drop", "0", "--format", "json"])
    (quiet,) = json.loads(capsys.readouterr().out)["no_change"]
    assert quiet["alarms"] < quiet["alarms_worst_20th"] and 0.1 < quiet["any_alarm"] < 0.45
    assert quiet["any_alarm_history"] <= 0.05
    main(["regress", "--baseline", str(check.folder / "b.json"), "--plan", "--metric", "pass@8", "--drop", "0.03"])
    assert "More samples of each problem buy more power" in capsys.readouterr().out


def test_recovery_is_checked_between_the_base_and_the_reference_of_the_baseline(tmp_path, capsys):
    shifts = {"base": -0.4, "guided": 0.0, "guide": 0.1}
    for name, shift in shifts.items():
        policy = "disagreement" if name == "guided" else name
        write_results(tmp_path / name, {TASK: counts(1, shift)}, run=takeover(policy))
    file = str(tmp_path / "b.json")
    words = ["regress", str(tmp_path / "guided"), "--baseline", file, "--update"]
    main([*words, "--base", str(tmp_path / "base"), "--reference", str(tmp_path / "guide")])
    capsys.readouterr()

    def check(shift, *words, seed=2):
        folder = write_results(tmp_path / "now", {TASK: counts(seed, shift)}, run=takeover(seed=1))
        status = main(["regress", str(folder), "--baseline", file, "--metric", "recovery", "--format", "json", *words])
        return status, json.loads(capsys.readouterr().out)["tasks"][TASK]

    status, same = check(0.0, seed=1)
    assert (status, same["note"], same["now"]) == (0, "no sample differs", same["baseline"])
    status, worse = check(-0.2)
    assert (status, worse["verdict"]) == (1, "regressed")
    means = {name: np.mean(counts(1, shift)) / 8 for name, shift in shifts.items()}
    gap = means["guide"] - means["base"]
    assert worse["baseline"] == pytest.approx((means["guided"] - means["base"]) / gap)
    assert worse["difference"] == pytest.approx((np.mean(counts(2, -0.2)) / 8 - means["guided"]) / gap)
    assert worse["low"] < worse["difference"] < worse["high"] < 0
    assert check(-0.2, "--max_drop", "0.9")[1]["verdict"] == "pass"
    assert check(-0.2, "--max_drop", "5%")[1]["verdict"] == "regressed"
    assert check(0.0, "--max_drop", "0.1")[1]["verdict"] == "pass"
    assert check(0.0, "--metric", "recovery_pass@8", "--max_drop", "0.3")[0] == 0


def test_recovery_where_the_reference_is_not_above_the_base_is_inconclusive(tmp_path, capsys):
    for name, policy in (("base", "base"), ("guided", "disagreement"), ("guide", "guide")):
        write_results(tmp_path / name, {TASK: counts(1)}, run=takeover(policy))
    words = ["regress", str(tmp_path / "guided"), "--baseline", str(tmp_path / "b.json")]
    main([*words, "--update", "--base", str(tmp_path / "base"), "--reference", str(tmp_path / "guide")])
    capsys.readouterr()
    assert main([*words, "--metric", "recovery", "--strict"]) == 1
    assert "the reference is not above the base beyond noise" in capsys.readouterr().out


def test_recovery_needs_a_baseline_with_base_and_reference(check):
    with pytest.raises(ResultsError, match="write it again with --update --base RESULTS --reference RESULTS"):
        check({TASK: counts(2)}, "--metric", "recovery")
    with pytest.raises(ArgumentError, match="--base and --reference go together, and with --update"):
        check({TASK: counts(2)}, "--base", "x", "--reference", "y")
    folder = write_results(check.folder / "short", {TASK: counts(1, size=20)}, run=takeover("base"))
    words = ["regress", str(check.folder / "good"), "--baseline", str(check.folder / "c.json"), "--update"]
    with pytest.raises(ResultsError, match="has not the problems and samples of takeover_math500"):
        main([*words, "--base", str(folder), "--reference", str(folder)])


def test_a_growing_share_of_unparsed_answers_regresses(check):
    folder = check.folder / "now"

    def spoil(share):
        write_results(folder, {TASK: counts(1)}, run=takeover(seed=1))
        path, results = next(folder.glob("samples_*")), next(folder.glob("results_*"))
        rows = [json.loads(line) | {"unparsed": share} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        content = json.loads(results.read_text())
        content["results"][TASK]["unparsed,all"] = share
        results.write_text(json.dumps(content))
        return main(["regress", str(folder), "--baseline", str(check.folder / "b.json"), "--metric", "unparsed"])

    assert (spoil(0.0), spoil(0.125)) == (0, 1)

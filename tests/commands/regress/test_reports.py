"""A verdict as JSON of several metrics, as JUnit XML and as the summary of a CI job."""

from xml.etree import ElementTree

from helpers.results import TASK, draw_counts, takeover, write_results

from lm_eval_takeover.cli import main


def test_several_metrics_are_judged_in_one_call(check, capsys):
    words = ["--metric", "unparsed", "acc,pass@4", "--junit", str(check.folder / "j.xml")]
    status, found = check({TASK: draw_counts(2, -0.15)}, *words)
    assert (status, found["verdict"]) == (1, "regressed")
    verdicts = {metric: one["tasks"][TASK]["verdict"] for metric, one in found["metrics"].items()}
    assert verdicts == {"unparsed": "pass", "acc": "regressed", "pass@4": "regressed"}
    suite = ElementTree.parse(check.folder / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    main(["regress", str(check.folder / "now"), "--baseline", str(check.folder / "b.json"), *words[:3]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.endswith("p (Holm)")] == ["unparsed", "acc", "pass@4"]  # no row in two


def test_junit_and_the_summary_of_github_say_what_the_table_says(check, monkeypatch):
    summary, junit = check.folder / "summary.md", check.folder / "out" / "junit.xml"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    check({TASK: draw_counts(2, -0.15)}, "--junit", str(junit))
    assert ElementTree.parse(junit).find("testcase/failure").get("message").startswith("regressed: -0.")
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

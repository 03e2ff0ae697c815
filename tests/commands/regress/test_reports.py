"""A verdict as JSON of several metrics, as JUnit XML and as the summary of a CI job."""

from xml.etree import ElementTree

from helpers.results import draw_counts

TASK = "takeover_math500"


def test_several_metrics_are_judged_in_one_call(check):
    words = ["--metric", "unparsed", "acc,pass@4", "--junit", str(check.folder / "j.xml")]
    status, found = check({TASK: draw_counts(2, -0.15)}, *words)
    assert (status, found["verdict"]) == (1, "regressed")
    verdicts = {metric: one["tasks"][TASK]["verdict"] for metric, one in found["metrics"].items()}
    assert verdicts == {"unparsed": "pass", "acc": "regressed", "pass@4": "regressed"}
    suite = ElementTree.parse(check.folder / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")


def test_junit_and_the_summary_of_github_say_what_the_table_says(check, monkeypatch):
    summary, junit = check.folder / "summary.md", check.folder / "out" / "junit.xml"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    check({TASK: draw_counts(2, -0.15)}, "--junit", str(junit))
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert suite.find("testcase/failure").get("message").startswith("regressed: -0.")
    text = summary.read_text()
    assert text.startswith("before\n### lm-eval-takeover regress: regressed") and f"| {TASK} | acc |" in text

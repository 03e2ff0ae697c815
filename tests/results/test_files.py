"""Results folders: what lm-eval wrote is read as it is, what is broken is a line; and the figures of tasks and averages."""

import json
import re
import shutil
from pathlib import Path

import pytest
from helpers.one_line import one_line
from helpers.results import takeover, write_exact, write_results

from lm_eval_takeover.errors import ResultsError
from lm_eval_takeover.results import summary
from lm_eval_takeover.results.documents import Fields, task_settings
from lm_eval_takeover.results.files import read_run, read_runs

DATA = Path(__file__).parent / "data"  # `lm_eval --tasks takeover_demo --limit 4 --log_samples` on the demo pair
TASK = "takeover_demo"


@pytest.fixture
def folder(tmp_path):
    """A copy of the guided run."""
    return Path(shutil.copytree(DATA / "guided", tmp_path / "guided"))


def test_end_tokens_and_a_limit_are_settings_of_a_task(folder):
    """Those of a run with takeovers are among its own. A limit is the number of problems, as `rescore` has it, too."""
    document = json.loads(results_file(folder).read_text()) | {"eot_token_id": 7}
    document["n-samples"] = {TASK: {"original": 200, "effective": 4}, "all": {"original": 4, "effective": 4}}
    assert "end_tokens" not in task_settings(Fields("ours", document), TASK)
    del document["config"]["takeover"]
    settings = [task_settings(Fields("stock", document), task) for task in (TASK, "all")]
    assert [(each["end_tokens"], each["limit"]) for each in settings] == [(7, 4), (7, None)]


def results_file(folder):
    return next(folder.glob("results_*.json"))


def samples_file(folder):
    return next(folder.glob("samples_*.jsonl"))


def test_results_of_the_stock_command_are_read():
    runs, notes = read_runs([DATA])
    assert notes == [] and sorted((run.model, run.kind) for run in runs) == [
        ("base", "other"), ("demo-base", "base"), ("demo-base", "guided"), ("demo-guide", "guide")]  # fmt: skip
    tasks = [run.tasks[TASK] for run in runs]
    assert len({task.problems.ids for task in tasks}) == 1
    for task in tasks:
        assert (task.count, task.samples) == (4, 8)
        assert task.problems.values["acc"].mean() == task.means["acc"]
        assert task.settings["temperature"] == 0.6 and task.settings["task_version"] == 1.4


def test_the_newest_of_two_runs_of_one_command_counts_and_that_is_said(tmp_path):
    write_results(tmp_path / "a", {TASK: [0, 0]}, run=takeover())
    write_results(tmp_path / "a", {TASK: [8, 8]}, run=takeover(), date="2026-02-01T00-00-00")
    write_results(tmp_path / "b", {TASK: [4, 4]}, run=takeover(tau=9.0))
    runs, notes = read_runs([tmp_path])
    assert sorted(run.tasks[TASK].means["acc"] for run in runs) == [0.5, 1.0]
    assert len(notes) == 1 and "has it, too" in notes[0]
    for name, correct in (("one", [2, 8]), ("other", [8, 8]), ("same", [2, 8])):  # other models are told apart by their texts
        write_results(tmp_path / "hf" / name, {"plain": correct}, model="hf", model_args={"pretrained": "./out"})
    assert len(read_runs([tmp_path / "hf"])[0]) == 2
    write_results(tmp_path / "a", {TASK: [8, 8]}, run=takeover(), date="2026-03-01T00-00-00")  # with the same results
    write_results(tmp_path / "a", {"takeover_amc23": [0, 8]}, run=takeover(), date="2026-02-02T00-00-00")  # another task
    (run,), _ = read_runs([tmp_path / "a"])
    assert set(run.tasks) == {TASK, "takeover_amc23"}


@pytest.mark.parametrize("month", ["01", "03"])
def test_of_a_run_and_a_part_of_it_by_limit_the_whole_counts(tmp_path, month):
    dates = f"2026-{month}-01T00-00-00", "2026-02-01T00-00-00"
    whole, part = {TASK: [0, 8, 8, 8]}, {TASK: [0, 8], "takeover_amc23": [8, 8]}
    write_results(tmp_path / "whole", whole, run=takeover(), date=dates[0], config={"limit": None})
    write_results(tmp_path / "part", part, run=takeover(), date=dates[1], config={"limit": 2.0})
    (run,), notes = read_runs([tmp_path])
    assert {task: (result.count, result.means["acc"]) for task, result in run.tasks.items()} == {
        TASK: (4, 0.75), "takeover_amc23": (2, 1.0)}  # fmt: skip
    (note,) = notes
    assert re.fullmatch(f"{TASK} of '.*/part/.*' is left out: '.*/whole/.*' has more problems of it", note)


def test_groups_are_no_tasks(folder):
    content = json.loads(results_file(folder).read_text())
    content["groups"] = {"takeover_math": {"name": "takeover_math", "acc,all": 0.5}}
    content["results"] |= content["groups"]
    content["group_subtasks"] = {"takeover_math": [TASK]}
    results_file(folder).write_text(json.dumps(content))
    assert set(read_run(results_file(folder)).tasks) == {TASK}


def test_rescored_results_take_the_place_of_the_same_run(tmp_path):
    run = takeover(label="mine", run_dir="runs/mine")
    write_results(tmp_path / "old", {TASK: [1, 2, 3]}, run=run, model_args={"target_rate": 0.05, "window": 9})
    again = {"rescored": True, "tokens": 1}
    write_results(tmp_path / "new", {TASK: [8, 8, 8]}, run=run | again, date="2026-01-02T00-00-00", config={"limit": 3})
    (found,), notes = read_runs([tmp_path])
    assert found.tasks[TASK].means["acc"] == 1.0 and found.takeover["label"] == "mine"
    assert "the verdicts are those of `rescore`" in notes[0] and str(tmp_path / "new") in notes[0]
    other = run | again | {"identity": "of other texts"}
    write_results(tmp_path / "other", {TASK: [8, 8, 8]}, run=other, date="2026-01-03T00-00-00", config={"limit": 3})
    assert len(read_runs([tmp_path])[0]) == 2
    write_results(tmp_path / "part", {TASK: [8, 8]}, run=run | again, date="2026-01-04T00-00-00")
    (found,), notes = read_runs([tmp_path / "old", tmp_path / "part"])
    assert found.tasks[TASK].means["acc"] == 0.25 and "has more problems of it" in notes[0]


def test_a_plain_task_is_read_by_its_first_filter_and_grades_have_no_pass_at_k(tmp_path):
    shares = write_exact(tmp_path / "shares", [1.0, 0.0, 1.0, 1.0], flexible=[1.0] * 4, responses=3)
    (run,), notes = read_runs([shares])
    result = run.tasks["gsm8k"]
    assert (result.accuracy, result.samples, result.k, notes) == ("exact_match", 1, 1, [])
    assert result.means == {"acc": 0.75, "pass@1": 0.75}
    grades = write_exact(tmp_path / "grades", [0.3, 0.5])
    samples_file(grades).write_text(samples_file(grades).read_text().replace('"metrics": ["exact_match"], ', ""))
    (run,), notes = read_runs([grades])
    assert (run.tasks["gsm8k"].means, run.tasks["gsm8k"].k, notes) == ({"acc": 0.4}, None, [])
    others = write_exact(tmp_path / "others", [27.0, -26.0])
    for file in others.iterdir():
        file.write_text(file.read_text().replace("exact_match", "bleu"))
    runs, notes = read_runs([others])
    assert runs == [] and "metric 'bleu' is 27.0 in one line, expected a number from 0 to 1" in notes[0]


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (("results",), None, "field 'results' is missing"),
        (("config", "takeover"), "guided", "field 'config.takeover' is \"guided\", expected an object"),
        (("config", "takeover", "policy"), 3, "field 'config.takeover.policy' is 3, expected a text"),
        (("config", "takeover", "parameters"), {"base": "6e8"}, "field 'config.takeover.parameters.base'"),
        (("results", TASK, "acc,all"), float("nan"), "field 'results.takeover_demo.acc,all' is NaN"),
        (("results", TASK, "acc,all"), 0.5, "the mean of field 'acc' is 1.000000, but field"),
        (("n-samples", TASK, "effective"), 9, "holds 4 problems, but field 'n-samples.takeover_demo.effective'"),
        (("configs", TASK, "repeats"), float("inf"), "'configs.takeover_demo.repeats' is Infinity, expected a whole"),
        (("results", "x" * 300), {}, "expected a name without '/', of 200 bytes at most"),
    ],
)
def test_a_broken_results_file_is_a_line_with_file_and_field(folder, place, value, text):
    path = results_file(folder)
    parent = content = json.loads(path.read_text())
    for name in place[:-1]:
        parent = parent[name]
    if value is None:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    path.write_text(json.dumps(content))
    with one_line(ResultsError, text, path.name):
        read_run(path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda rows: rows[1].pop("doc_hash"), "line 2: field 'doc_hash' is missing"),
        (lambda rows: rows[1].update(doc_hash=rows[0]["doc_hash"], doc_id=0), "'doc_hash' is that of line 1"),
        (lambda rows: rows[2].pop("unparsed"), "line 3: field 'unparsed' is in some lines and not in others"),
        (lambda rows: rows[3]["filtered_resps"][0].pop(), "line 4: field 'filtered_resps' has 7 samples, the lines"),
        (lambda rows: rows.pop(), "holds 3 problems, but field 'n-samples.takeover_demo.effective'"),
        (lambda rows: [row.update(filter="other") for row in rows], "holds no sample of filter 'all'"),
    ],
)
def test_a_broken_samples_file_is_a_line_with_file_line_and_field(folder, change, text):
    path = samples_file(folder)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with one_line(ResultsError, text, path.name):
        read_run(results_file(folder))


def test_files_that_are_cut_off_empty_too_large_or_missing_are_a_line(folder):
    path, samples = results_file(folder), samples_file(folder)
    samples.write_bytes(samples.read_bytes()[:-700])
    with pytest.raises(ResultsError, match=r"line 4 is not JSON .*; write it again with"):
        read_run(path)
    path.write_text("")
    with pytest.raises(ResultsError, match="is not JSON"):
        read_run(path)
    with path.open("wb") as stream:
        stream.truncate(200 * 2**20)
    with pytest.raises(ResultsError, match=r"results_.* cannot be read: it has more than \d+ MB; expected a file of"):
        read_run(path)
    path.unlink()
    samples.unlink()
    for place, told in ((folder, "holds no results_"), (folder / "none", "does not exist")):
        with pytest.raises(ResultsError, match=told):
            read_runs([place])


def test_a_task_has_its_rates_and_what_a_task_lacks_is_missing_in_the_average(tmp_path):
    counts = {"tokens": 1000, "takeovers": 40, "base_passes": 1200, "guide_passes": 100, "realized_rate": 0.04}
    run = takeover(per_task={"a": counts}, parameters={"base": 10, "guide": 100})
    write_results(tmp_path / "logged", {"a": [1, 2, 3]}, run=run, samples=3)
    write_results(tmp_path / "means", {"b": [1, 2, 5]}, run=takeover(seed=1), samples=5, logged=False)
    runs, _ = read_runs([tmp_path])
    tasks = {task: cell for run in runs for task, cell in summary.summarize_tasks(run).items()}
    rates = tasks["a"].rates
    assert (rates.realized_rate, rates.base_passes_per_token, rates.donor_passes_per_token) == (0.04, 1.2, 0.1)
    assert rates.weights_per_token == pytest.approx(1.2 * 10 + 0.1 * 100)
    assert rates.seconds_per_problem == pytest.approx(60 / 3)  # of all tasks of a run: its seconds are not split
    assert tasks["a"].passed == tasks["a"].score("pass@3") and tasks["a"].acc.interval is not None
    whole = summary.average(list(tasks.values()))
    assert (whole.k, whole.samples, whole.passed) == (None, None, summary.Figure())
    assert whole.acc.value is not None and whole.acc.interval is None
    assert "pass@5" not in whole.scores


@pytest.mark.parametrize(("tasks", "averaged"), [
    (["mine", "takeover_aime24", "takeover_amc23"], ["takeover_amc23", "takeover_aime24"]),
    (["mine", "takeover_gpqa_diamond", "mine"], ["mine", "takeover_gpqa_diamond"]),
    (["takeover_gsm8k_100", "takeover_amc23", "takeover_gsm8k"], ["takeover_gsm8k", "takeover_amc23"]),
    (["takeover_gsm8k_100", "takeover_demo"], ["takeover_gsm8k_100"]), (["mine", "mine_2"], ["mine", "mine_2"]),
    (["takeover_gpqa_diamond_50", "takeover_gpqa_diamond"], ["takeover_gpqa_diamond"]),
])  # fmt: skip
def test_averages_are_over_mathematical_tasks_and_never_over_a_task_and_its_subset(tasks, averaged):
    assert summary.choose_averaged(tasks) == averaged

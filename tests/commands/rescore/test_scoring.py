"""rescore and show: verdicts of other verifiers, and what is shown of a run."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from helpers.analyses import score_run, write_run
from helpers.demo_runs import run_demo, write_task
from helpers.run_dirs import plant, plant_facts, query

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.rescore.scoring import rescore
from lm_eval_takeover.commands.show.rollout import find_sample, list_scores, mark_takeovers
from lm_eval_takeover.errors import ArgumentError, RunDirError
from lm_eval_takeover.runs.layout import journal_path, lock_path
from lm_eval_takeover.runs.run_reader import read_run_folder, read_stored_runs
from lm_eval_takeover.storage.files import TASK_CONFIGS, Lock
from lm_eval_takeover.tasks import benchmarks

LIMIT = 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run_dir with three problems of the demo, and what lm-eval made of them."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, run_demo(folder, LIMIT, {"spike_ratio": 0.03})  # some samples are wrong


def test_the_same_tasks_give_the_same_results(finished):
    folder, original = finished
    (run,) = read_stored_runs(folder)
    done = rescore(run, [], None)
    assert (done.changes, done.compared, done.left_out) == ([], LIMIT * 8, 0)
    of_task, expected = (found["results"]["takeover_demo"] for found in (done.results, original))
    assert of_task.items() >= {key: value for key, value in expected.items() if "stderr" not in key}.items()
    of_the_call = ("run_dir", "seconds", "attempts", "differs_from_calibration")
    now, then = (
        {name: value for name, value in found["config"]["takeover"].items() if name not in of_the_call}
        for found in (done.results, original)
    )
    assert (now.pop("rescored"), now.pop("verifier")) == (True, "takeover")
    assert now == then


def test_a_greedy_run_has_one_text_of_each_problem_which_stands_for_all_samples(tmp_path):
    original = run_demo(tmp_path, 1, {"tau": 1.5}, gen_kwargs="do_sample=false")
    (run,) = read_stored_runs(tmp_path)
    assert (len(run.samples), original["config"]["takeover"]["samples"]) == (1, 1)
    done = rescore(run, [], None)
    assert (done.changes, done.left_out) == ([], 0)
    assert done.results["results"]["takeover_demo"]["pass@8,all"] == original["results"]["takeover_demo"]["acc,all"]
    assert done.results["config"]["takeover"]["tokens"] == original["config"]["takeover"]["tokens"]


def test_changed_verdicts_are_listed(finished, tmp_path, printed, monkeypatch):
    """A corrected gold answer: the document has changed, its prompt has not."""
    original, folder = finished[1], shutil.copytree(finished[0], tmp_path / "run")
    shutil.copy(journal_path(folder, 0), journal_path(folder, 1))  # another rank has judged these texts, too
    before = read_stored_runs(folder)[0].verdicts
    problems = benchmarks.demo.problems()
    answers = [row["answer"] for row in problems]

    def corrected():
        return [{**row, "answer": "98765"} if number == 1 else row for number, row in enumerate(problems)]

    monkeypatch.setattr(benchmarks.demo, "problems", corrected)
    tasks = shutil.copytree(TASK_CONFIGS, tmp_path / "tasks")
    task = tasks / "takeover_demo.yaml"
    task.write_text(re.sub(r"version: \S+", "version: 9.9", task.read_text()))
    outcomes = [outcome for _, outcome in original["samples"]["takeover_demo"][1]["filtered_resps"][0]]
    right, first = outcomes.count("correct"), outcomes.index("correct")
    shown = printed("rescore", folder, "--include_path", tasks, "--output_path", tmp_path / "out")
    assert f"{right} of 24 verdicts changed" in shown
    row = next(line for line in shown.splitlines() if line.startswith("takeover_demo"))
    assert row.split() == ["takeover_demo", "1", str(first), "correct", "incorrect", answers[1], answers[1]]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(results.read_text())
    assert found["config"]["takeover"]["rescored"] is True and found["versions"] == {"takeover_demo": 9.9}
    (samples,) = (tmp_path / "out").rglob("samples_takeover_demo_*.jsonl")
    assert len(samples.read_text().splitlines()) == LIMIT
    assert read_stored_runs(folder)[0].verdicts == before
    assert "verdicts changed" in printed("rescore", folder, "--include_path", tasks)  # these are the run's own from now on
    correct = [sample.correct for sample in read_run_folder(folder).answered]
    now, then = (results["results"]["takeover_demo"]["acc,all"] for results in (found, original))
    assert sum(correct) / len(correct) == now != then
    shutil.rmtree(folder / "rescored")
    with Lock(lock_path(folder, 1)), pytest.raises(RunDirError, match="is in use by process"):
        main(["rescore", str(folder)])
    assert not (folder / "rescored").exists()


def test_a_stranger_s_label_stays_inside_of_the_output(finished, tmp_path, capsys):
    folder = shutil.copytree(finished[0], tmp_path / "a" / "run")
    plant_facts(folder, takeover={"label": "../../out\nb\x1b[2J\u202e"})
    before = set(tmp_path.rglob("*"))
    assert main(["rescore", str(folder), "--output_path", str(tmp_path / "a" / "out")]) == 0
    new = set(tmp_path.rglob("*")) - before
    assert all(path.is_relative_to(tmp_path / "a" / "out") or path.parent == folder for path in new)
    assert len(list((tmp_path / "a" / "out").glob("*/results_*.json"))) == 1
    shown = capsys.readouterr()
    assert not {"\x1b", "\u202e"} & set(shown.out + shown.err)


def test_documents_without_all_their_responses_are_left_out(finished, tmp_path, capsys):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    query(folder, "DELETE FROM samples WHERE doc_id = 2 AND sample = 5")
    (run,) = read_stored_runs(folder)
    done = rescore(run, [], None)
    assert done.left_out == 1
    assert main(["rescore", str(folder)]) == 0
    first = f"{LIMIT * 8 - 1} of {LIMIT * 8} samples are finished; documents that lack some of theirs are left out"
    assert capsys.readouterr().out.splitlines()[0] == first  # before the work
    assert [row["doc_id"] for row in done.results["samples"]["takeover_demo"]] == [0, 1]


def test_what_cannot_be_rescored_is_one_line(finished, capsys):
    (run,) = read_stored_runs(finished[0])
    with pytest.raises(ArgumentError, match="--tasks 'takeover_dmo' is not known; did you mean 'takeover_demo'"):
        rescore(run, ["takeover_dmo"], None)
    own = replace(run, asked=[replace(row, task="my_sums") for row in run.asked])
    told = "'my_sums' of the run is not installed; give --include_path, the folder of its task file"
    with pytest.raises(ArgumentError, match=told):
        rescore(own, [], None)
    with pytest.raises(SystemExit):
        main(["rescore", str(finished[0]), "--verifier", "last_number"])
    assert "invalid choice: 'last_number'" in capsys.readouterr().err


def test_another_verifier_judges_the_same_texts_and_leaves_the_verdicts_of_the_run(finished, tmp_path, printed):
    folder = shutil.copytree(finished[0], tmp_path / "run")
    before = read_stored_runs(folder)[0].verdicts  # what analyze, show and report read
    shown = printed("rescore", folder, "--verifier", "math_verify")
    assert "of 24 verdicts of the run differ from those of math_verify" in shown
    assert read_stored_runs(folder)[0].verdicts == before


def test_thinking_ends_where_the_run_says(tmp_path):
    run_demo(tmp_path, 1, {"policy": "base", "think_end_token": "}"})
    (run,) = read_stored_runs(tmp_path)
    done = rescore(run, [], None)
    assert (done.changes, done.compared) == ([], 8)
    run.facts["arguments"]["think_end_token"] = 7
    with pytest.raises(ArgumentError, match="is the token 7, whose text is not known here"):
        rescore(run, [], None)


def test_questions_that_the_run_withheld_stay_withheld(tmp_path):
    secret = {"problem": "a question that nobody publishes", "choices": ["yes", "no"], "answer": "A"}
    write_task(tmp_path / "tasks", "secret", [secret], "GPQA", repeats=2, generation_kwargs={"max_gen_toks": 3})
    withheld = {"metadata": {"withhold_questions": True}}
    run_demo(tmp_path / "run", None, {"policy": "base"}, "secret", tmp_path / "tasks", **withheld)
    run = read_run_folder(tmp_path / "run")
    kept = run.find_prompt(run.answered[0])
    assert (kept["prompt"], kept["problem"], kept["answer"]) == (None, None, "A") and kept["prompt_ids"]
    assert main(["rescore", str(tmp_path / "run"), "--include_path", str(tmp_path / "tasks")]) == 0
    written = [path.read_text() for path in (tmp_path / "run" / "rescored").rglob("*.json*")]
    assert len(written) == 2 and all("nobody publishes" not in text for text in written) and "withheld" in "".join(written)


def test_a_terminal_obeys_nothing_of_a_stranger_s_run(demo_runs, tmp_path, printed):
    folder = shutil.copytree(demo_runs["guided"], tmp_path / "run")
    plant_facts(folder, arguments={"model": "\x1b]0;title\x07"}, takeover={"policy": "\x1b]0;title\x07"})
    plant(folder, "verdicts", answer="\x1b[2J")
    shown = printed("show", folder)
    assert "\\u001b]0;title" in shown and not {"\x1b", "\x07"} & set(shown)


def test_takeovers_stand_in_brackets_with_what_the_host_would_have_written(demo_runs, printed):
    run = read_run_folder(demo_runs["guided"])
    one, trace = next((one, trace) for one, trace in run.read_traces(["chosen_from", "token_id", "host_token_id"])
                      if one.stored.takeovers and one.sample == 2)  # fmt: skip
    text = printed("show", demo_runs["guided"], "--doc", str(one.doc_id), "--sample", "2")
    rows = zip(*(trace[name].tolist() for name in ("chosen_from", "token_id", "host_token_id")), strict=True)
    taken = [(token, host) for writer, token, host in rows if writer == "guide"]
    marks = re.findall(r"\[([^\]|]*)(\|[^\]]*)?\]", text)
    assert len(marks) == len(taken) == one.stored.takeovers
    assert [bool(replaced) for _, replaced in marks] == [token != host for token, host in taken]
    plain = re.sub(r"\[([^\]|]*)(\|[^\]]*)?\]", r"\1", text)
    assert one.stored.text.strip() in plain
    gold = run.find_prompt(one)["answer"]
    assert f"{one.stored.takeovers} takeovers" in text and f"gold: {gold}" in text


def test_answers_of_a_kind_come_with_what_the_gate_saw(demo_runs, tmp_path, printed):
    """Without a base run, but for --rescued: the base's row of the comparison."""
    run = read_run_folder(shutil.copytree(demo_runs["guided"], tmp_path / "compared" / "guided" / "samples"))
    right = [one for one in run.answered if one.correct]
    shown = printed("show", tmp_path / "compared", "--right", "--number", "2")
    assert shown.endswith(f"{len(right)} of {len(run.answered)} answers are right; --number N shows more than 2\n")
    assert shown.count("highest that did not fire") == 2 and "correct: " in shown
    assert "doc 0, sample" in shown and "doc 1, sample" in shown  # another problem, no second sample of the first
    gate, told = run.takeover, shown.split("highest that")[0].split(f"tau {run.takeover['tau']:.3f}, ce at each")[1]
    ((_, trace),) = run.read_traces(["chosen_from", "score", "window_mean"], right[:1])
    scores, means = trace["score"].tolist(), np.nan_to_num(trace["window_mean"]).tolist()
    least = [max(gate["tau"], gate["kappa"] * mean) for mean in means]
    lines = [f"token {at:,}: {score:.3f} {'>' if score > edge else '<'} {edge:.3f}"
             for at, (score, edge) in enumerate(zip(scores, least, strict=True))]  # fmt: skip
    taken = [line for writer, line in zip(trace["chosen_from"], lines, strict=True) if writer == "guide"]
    assert [line.split("  ")[0] for line in told.splitlines()[1:]] == taken and all(" > " in line for line in taken)
    highest = max(np.flatnonzero(trace["chosen_from"] == "base"), key=scores.__getitem__)
    assert lines[highest] in shown.split("highest that did not fire, ")[1] and " < " in lines[highest]
    with pytest.raises(ArgumentError, match="--rescued: no row of the base beside"):
        main(["show", str(tmp_path / "compared"), "--rescued"])
    base = read_run_folder(shutil.copytree(demo_runs["base"], tmp_path / "compared" / "base" / "samples"))
    failed = {one.doc_id for one in base.answered} - {one.doc_id for one in base.answered if one.correct}
    rescued = [one for one in right if one.doc_id in failed]
    assert f"{len(rescued)} of {len(run.answered)} answers are rescued" in printed("show", tmp_path / "compared", "--rescued")
    with pytest.raises(ArgumentError, match="--missed: no row of the guide beside"):
        main(["show", str(tmp_path / "compared"), "--missed"])


@pytest.mark.parametrize(("score", "mean", "held"), [(1.5, 3.0, "tau"), (22.215, 5.0, "the window")])
def test_the_test_that_held_a_score_is_named_and_the_donors_token(score, mean, held):
    rows = {"token_id": [0, 1], "host_token_id": [0, 1], "chosen_from": ["base"] * 2, "score": [0.1, score]}
    trace = {name: np.array(values) for name, values in (rows | {"window_mean": [np.nan, mean]}).items()}
    gate = {"tau": 3.572, "kappa": 5.0378, "score": "ce"}
    decode = ["The", " ant", " fox"].__getitem__
    *_, highest, why = list_scores(lambda ids: decode(*ids), trace, "guide", gate, {1: "[fox]"}.__getitem__)
    assert highest.startswith(f"highest that did not fire, token 1: {score:.3f} < ")
    assert why.startswith(f"  held by {held}") and why.endswith("; the guide's likeliest token: [fox]")


def test_a_missed_answer_is_wrong_where_the_guide_is_right(tmp_path, printed):
    tokens = list(range(8))
    for row, right in (("guided", (False, False, True)), ("guide", (True, False, True))):
        rollouts = {("t", doc, 0): (tokens, {}, correct, "1") for doc, correct in enumerate(right)}
        policy = {"guided": "disagreement", "guide": "guide"}[row]
        write_run(tmp_path / row / "samples", policy, rollouts, {("t", doc): ("2 + 2", "4") for doc in range(3)})
    shown = printed("show", tmp_path, "--missed", "--number", "3")
    assert shown.endswith("1 of 3 answers are missed\n") and "task t, doc 0, sample 0" in shown
    assert f"likeliest token: not known; `lm-eval-takeover score {tmp_path}/guided/samples` reads it" in shown
    run = read_run_folder(tmp_path / "guided")
    score_run(run.folder, {one.stored.key: {"guide_top": [5] * 8} for one in run.answered})
    assert "the guide's likeliest token: [" in printed("show", tmp_path, "--missed")


@pytest.mark.parametrize(("words", "hosts", "marked"), [
    (["The", " "], [0, " fox"], "The[ |fox]"),
    (["Sum.", "\n", "Then"], [0, "Then", 0], "Sum.[\\n|Then]\nThen"),
    (["x[0].", "\n", "Then"], [0, "Then", 0], "x[0].⟦\\n|Then⟧\nThen"),
])  # fmt: skip
def test_a_mark_shows_spaces_and_line_breaks_and_is_no_bracket_of_the_answer(words, hosts, marked):
    known = [*words, *filter(None, hosts)]
    columns = {"token_id": [*range(len(words))], "host_token_id": [known.index(host) if host else 0 for host in hosts]}
    columns["chosen_from"] = ["base", "guide", "base"][: len(words)]
    trace = {name: np.array(values) for name, values in columns.items()}
    assert mark_takeovers(lambda ids: "".join(known[i] for i in ids), trace, "guide").plain == marked


@pytest.mark.parametrize(("options", "message"), [
    (["--doc", "99"], "--doc 99 is not there; task takeover_demo has 4 from 0 to 3"),
    (["--sample", "9"], "--sample 9 is not there; doc 0 has 0 to 7"),
    (["--task", "x"], "--task 'x' is not in the run, which has takeover_demo"),
])  # fmt: skip
def test_what_is_not_there_is_said(demo_runs, options, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        main(["show", str(demo_runs["guided"]), *options])
    with pytest.raises(ArgumentError, match="takeover_demo has no finished sample"):
        find_sample(replace(read_run_folder(demo_runs["guided"]), samples={}), None, 0, 0)

"""Logs of any model: what they are joined by, and runs that must not be taken for each other."""

import copy
import json
import re
import shutil
from itertools import count
from pathlib import Path

import pytest
from helpers.demo_runs import run_demo
from helpers.stock import write_logs
from lm_eval import simple_evaluate

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.regress.baseline import read_single_run, write_baseline
from lm_eval_takeover.commands.rescore.scoring import write_results
from lm_eval_takeover.demo import DEMO, PROMPT, problems
from lm_eval_takeover.errors import ResultsError, TakeoverError
from lm_eval_takeover.results.files import read_run, read_runs
from lm_eval_takeover.results.problems import ReadOptions
from lm_eval_takeover.runs.identity import describe_identity
from lm_eval_takeover.runs.run_reader import read_run_folder

COUNT = 20


def describe_tasks(data):
    """A task of log-likelihoods with two metrics, and a task of texts with two filters."""
    shared = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    shared["doc_to_text"] = PROMPT.format(problem="{{problem}}")
    choices = {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "right"}
    texts = {"output_type": "generate_until", "generation_kwargs": {"until": [], "max_gen_toks": 320}}
    texts["filter_list"] = [
        {"name": name, "filter": [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]}
        for name, pattern in (("boxed", r"boxed\{(\d+)"), ("first", r"= (\d+)"))
    ]
    exact = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    return [
        {"task": "choices", **shared, **choices, "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]},
        {"task": "texts", **shared, **texts, "doc_to_target": "answer", "metric_list": [exact]},
    ]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Results folders by model: `lm_eval --model hf` on the models of the demo. Two of the problems are equal."""
    folder = tmp_path_factory.mktemp("logs")
    rows = [row | {"choices": [row["answer"], "1", "12"], "right": 0} for row in problems()[: COUNT - 1]]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    for name, model in DEMO.items():
        options = {"model_args": {"pretrained": str(model), "dtype": "float32"}, "device": "cpu", "batch_size": COUNT}
        tasks = describe_tasks(folder / "data.jsonl")
        write_logs(folder / name, simple_evaluate, "hf", tasks=tasks, bootstrap_iters=0, **options)
    return folder


def find(folder, pattern):
    (path,) = folder.rglob(pattern)
    return path


def test_a_filter_is_chosen_by_name(logs):
    path = find(logs / "guide", "results_*.json")
    said = json.loads(path.read_text())["results"]["texts"]
    means = [read_run(path, ReadOptions(name)).tasks["texts"].means["acc"] for name in (None, "boxed", "first")]
    assert means == [said["exact_match,boxed"], said["exact_match,boxed"], said["exact_match,first"]]
    assert means[0] != means[2]
    run = read_run(path, ReadOptions("boxed"))
    assert list(run.tasks) == ["texts"] and "choices of" in (line := run.notes[0]) and "no filter 'boxed'" in line
    told = r"choices of .* it has none; texts of .* it has no filter 'last' \(--filter\); it has boxed, first"
    with pytest.raises(ResultsError, match=told):
        read_run(path, ReadOptions("last"))


def test_two_samples_files_are_compared_by_problem_with_and_without_their_results(logs, tmp_path, answered):
    files = [find(logs / name, "samples_texts_*.jsonl") for name in ("base", "guide")]
    words = ["--filter", "boxed", "--max_drop", "0"]
    whole = answered("regress", files[1], "--baseline", files[0], "--allow", "model_args.pretrained", *words)
    for file, name in zip(files, ("base", "guide"), strict=True):
        (tmp_path / name).mkdir()
        shutil.copy(file, tmp_path / name)
    alone = answered("regress", tmp_path / "guide", "--baseline", tmp_path / "base" / files[0].name, *words)
    assert whole[1]["tasks"] == alone[1]["tasks"] and alone[1]["tasks"]["texts"]["difference"] != 0
    folders = [tmp_path / name for name in ("base", "guide")]
    _, board = answered("leaderboard", *folders, "--vs", folders[0], "--filter", "boxed")
    (versus,) = [row["vs"] for row in board["rows"] if "vs" in row]
    assert versus["acc"]["texts"]["how"] == "paired by problem"
    assert versus["acc"]["texts"]["difference"] == pytest.approx(alone[1]["tasks"]["texts"]["difference"])


def test_crashed_and_missing_problems_are_no_wrong_answers(logs, tmp_path):
    """Of log-likelihoods, which are one sample each; equal problems are two."""
    folder = Path(shutil.copytree(logs / "guide", tmp_path / "guide"))
    samples, results = find(folder, "samples_choices_*"), find(folder, "results_*")
    crashed, _, *rest = map(json.loads, samples.read_text().splitlines())
    samples.write_text("".join(json.dumps(row) + "\n" for row in (crashed | {"resps": [None]}, *rest)))
    with pytest.raises(ResultsError, match="--max_missing"):
        read_run(results)
    run = read_run(results, ReadOptions(max_missing=0.1))
    result, problems = run.tasks["choices"], run.tasks["choices"].problems
    assert (len(set(problems.ids)), problems.missing, result.samples, result.k) == (COUNT - 2, 2, 1, 1)
    for metric, found in (("acc", result.means["acc"]), ("acc_norm", problems.values["acc_norm"].mean())):
        assert found == pytest.approx(sum(row[metric] for row in rest) / len(rest))
    (line,) = run.notes
    assert "choices of" in line and f"2 of {COUNT} problems have no response, and are in no figure" in line


TASK = "takeover_demo"
NUMBER = count()


def list_leaves(value, place=()):
    """The places of all values in an object."""
    if not isinstance(value, dict) or not value:
        return [place]
    return [leaf for name, inner in value.items() for leaf in list_leaves(inner, (*place, name))]


def change(results, place):
    """Another value there; of `text_settings` with the identity that it makes."""
    *outer, last = place
    inner = results
    for name in outer:
        inner = inner[name]
    inner[last] = inner[last] + 1 if isinstance(inner[last], (int, float)) and not isinstance(inner[last], bool) else "another"
    described = results["config"]["takeover"]
    described |= describe_identity(described["text_settings"])


def change_samples(results, field):
    """Another document or prompt: its digest, and with it the identity of the task."""
    row = results["samples"][TASK][0]
    row[field] = "another"
    results["config"]["takeover"]["per_task"][TASK]["identity"] = "another"


def list_changes(results):
    """All in which two runs may differ: settings of run, task file and scorer, documents, prompts, limits."""
    configured = results["configs"][TASK]
    texts = results["config"]["takeover"]["text_settings"]
    places = [("config", "takeover", "text_settings", *leaf) for leaf in list_leaves(texts)]
    places += [("configs", TASK, "generation_kwargs", name) for name in configured["generation_kwargs"]]
    judging = ("process_results", "filter_list", "metric_list", "doc_to_target", "doc_to_text")
    places += [("configs", TASK, *names) for names in (*zip(judging), ("metadata", "scorer"), ("metadata", "verifier"))]
    places += [(name, TASK) for name in ("versions", "n-shot")]
    changes = {".".join(place): lambda other, place=place: change(other, place) for place in places}
    changes |= {field: lambda other, field=field: change_samples(other, field) for field in ("doc_hash", "prompt_hash")}
    for name, value in {"max_length": 40, "max_gen_toks": 9, "enable_thinking": True}.items():
        changes[name] = lambda other, name=name, value=value: other["config"]["model_args"].update({name: value})
    return changes


def refuse(*words):
    """The line with which `regress` refuses a comparison."""
    with pytest.raises(TakeoverError) as error:
        main(["regress", *map(str, words)])
    return str(error.value)


def write(folder, results):
    return write_results(copy.deepcopy(results), folder / str(next(NUMBER)))


def test_runs_that_differ_in_one_thing_are_rows_of_their_own_and_no_baseline_of_each_other(tmp_path):
    original = run_demo(None, 2, {"tau": 6.0, "kappa": 1.0}, gen_kwargs={"max_gen_toks": 48})
    whole = write(tmp_path, original)
    write_baseline(tmp_path / "baseline.json", read_single_run(whole))
    assert len(read_runs([whole, write(tmp_path, original)])[0]) == 1  # the same run twice
    tried = list_changes(original)
    assert len(tried) > 35
    for name, apply in tried.items():
        results = copy.deepcopy(original)
        apply(results)
        other = write(tmp_path, results)
        runs, notes = read_runs([whole, other])
        assert (len(runs), notes) == (2, []), name
        for baseline in (tmp_path / "baseline.json", whole):
            if name.endswith("seed"):
                assert main(["regress", str(other), "--baseline", str(baseline)]) == 0
                continue
            line = refuse(other, "--baseline", baseline)
            assert re.search(r"settings differ from --baseline|; 1 are missing in the", line), name


def test_costs_are_those_of_the_run_itself_where_two_runs_share_a_folder(tmp_path, capsys):
    folder, words = tmp_path / "run", ["--metric", "realized_rate", "--max_change", "0.001", "--allow", "tau"]
    runs = [run_demo(folder, 2, {"tau": tau, "kappa": 0.0}) for tau in (16.0, 0.1)]
    low, high = (write(tmp_path, run) for run in runs)
    described = [read_single_run(results).tasks[TASK].problems.values for results in (low, high)]
    rates = [values["takeovers"].sum() / values["tokens"].sum() for values in described]
    told = [json.loads(next(results.glob("results_*")).read_text())["config"]["takeover"] for results in (low, high)]
    assert rates == pytest.approx([each["realized_rate"] for each in told]) and rates[0] < rates[1]
    assert main(["regress", str(high), "--baseline", str(low), *words]) in (0, 1)
    shown = capsys.readouterr().out
    assert f"{rates[0]:.4f}" in shown and f"{rates[1]:.4f}" in shown
    assert read_run_folder(folder).takeover["tau"] == 0.1
    for field, value, said in (
        ("identity", "another", "holds other samples"),
        ("takeovers", 1, "has another sum of takeovers"),
    ):
        other = copy.deepcopy(runs[1])
        other["config"]["takeover"]["per_task"][TASK][field] = value
        assert said in refuse(write(tmp_path, other), "--baseline", low, *words)
    for journal in folder.glob("journal-*"):
        journal.unlink()
    assert "is in the run_dir alone: run_dir=" in refuse(high, "--baseline", low, *words)

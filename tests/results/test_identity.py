"""Two runs that differ in one thing never share a figure: not in a row of leaderboard, nor in a verdict of regress."""

import copy
import json
import re
from itertools import count

import pytest
from helpers.demo_runs import run_demo

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.regress.baseline import read_single_run, write_baseline
from lm_eval_takeover.commands.rescore.scoring import write_results
from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.results.files import read_runs
from lm_eval_takeover.runs.identity import describe_identity
from lm_eval_takeover.runs.run_reader import read_run_folder

TASK = "takeover_demo"
NUMBER = count()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """lm-eval's results of two problems, as a run of ours gave them."""
    return run_demo(tmp_path_factory.mktemp("original") / "run", 2, {"tau": 6.0, "kappa": 1.0})


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


def test_runs_that_differ_in_one_thing_are_rows_of_their_own_and_no_baseline_of_each_other(original, tmp_path):
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

"""`compare`: rows through the stock command, done ones kept, interrupted ones taken up; and what a dry run says."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.pairs import ROOT
from helpers.processes import environment
from helpers.results import takeover, write_results
from helpers.stock import arguments_of, comparing_here, parse_stock, value_of
from lm_eval.api.metrics import bleu, mean
from lm_eval.tasks._index import TaskIndex
from torch.utils import collect_env

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.compare import budget_parameters, command, rows, running, worker, workload
from lm_eval_takeover.commands.compare.processes import CallFailed, start_worker
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, RunDirError, TakeoverError

sys.path.append(str(ROOT / "scripts"))
from draw_demo_results import count_decisions, read_comparison  # the demo's figures, from a comparison

DEMO_WORDS = ["compare", "--tasks", "takeover_demo", "--target_rate", "0.05"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo pair compared on 4 problems, as `make demo` does it with all of them, but in this process."""
    run_dir = tmp_path_factory.mktemp("demo")
    words = [*DEMO_WORDS, "--limit", "4", "--batch_size", "32"]
    with comparing_here():
        assert main([*words, "--run_dir", str(run_dir)]) == 0
    return run_dir, json.loads((run_dir / "leaderboard.json").read_text())


@pytest.fixture
def harness(monkeypatch):
    """Results without models: what was started, and at which call something else happens."""
    started = []

    def write(words):
        started.append(words)
        if action := fake.faults.pop(len(started), None):
            action(words)
        folder = Path(value_of(words, "--output_path"))
        if value_of(words, "--model") == "guided-takeover":
            given = arguments_of(words)
            rate = float(given.get("target_rate") or given.get("rate") or 0.07)
            per_task = {
                "takeover_demo": {"tokens": 1000, "realized_rate": rate, "base_passes": 1100, "guide_passes": 250}
            }
            run = takeover(given["policy"], rate=rate, per_task=per_task)
            counts = {"base": [0, 1], "guide": [8, 7], "random": [1, 1]}.get(given["policy"], [7, 7])
            write_results(folder, {"takeover_demo": counts * 8}, run=run)
        else:
            model_args = value_of(words, "--model_args")
            write_results(folder, {"takeover_demo": [6, 5] * 8}, model="hf", model_args=model_args)

    def fake(words):
        for call in json.loads(Path(words[1]).read_text()):
            write(["lm_eval", *call["words"]])
            (Path(call["results"]) / "call.json").write_text("{}")

    fake.faults = {}
    monkeypatch.setattr(running, "start_worker", fake)
    fake.started = started
    return fake


def test_a_few_takeovers_restore_what_the_guide_knows(demo):
    rows = {row["kind"]: row for row in demo[1]["rows"]}
    acc = {kind: row["average"]["acc"] for kind, row in rows.items()}
    assert list(acc) == ["base", "guided", "random", "guide"]
    assert acc["base"] <= 0.35 and acc["guide"] >= 0.90
    assert rows["guided"]["recovery"]["acc"] >= 0.9
    assert rows["guided"]["realized_rate"] <= 0.06
    assert rows["random"]["recovery"]["acc"] <= 0.4
    assert rows["random"]["nominal"] == rows["guided"]["realized_rate"]
    assert demo[1]["warnings"] == []


def test_what_each_row_cost_is_said(demo):
    costs = {row["row"]: row for row in demo[1]["costs"]}
    assert costs["base"]["guide_passes"] == 0 == costs["base"]["takeovers"]
    assert 0 < costs["guided"]["guide_passes"] < costs["guided"]["tokens"] < costs["guided"]["base_passes"] * 2
    assert all(row["seconds"] > 0 for row in costs.values())


def test_the_gate_finds_the_true_decisions(demo):
    takeovers, decisions, both = count_decisions(demo[0] / "guided" / "samples")
    assert both / decisions >= 0.8 and both / takeovers >= 0.3
    figures = read_comparison(demo[0])
    assert [row["method"] for row in figures["methods"]] == ["base alone", "random", "guided", "guide alone"]


def test_done_rows_stay_and_the_table_is_the_same(harness, tmp_path, capsys):
    words = [*DEMO_WORDS, "--run_dir", str(tmp_path)]
    assert main(words) == 0
    first = capsys.readouterr()
    assert [arguments_of(call)["policy"] for call in harness.started] == ["base", "disagreement", "guide", "random"]
    assert "base: lm_eval --model guided-takeover" in first.err and "Recovery is measured against" in first.out
    assert main(words) == 0
    again = capsys.readouterr()
    assert (again.out, len(harness.started)) == (first.out, 4)
    assert again.err.count("done before") == 4
    frontier = (tmp_path / "frontier.csv").read_text().splitlines()
    assert frontier[0].startswith("row,method,rate,realized_rate,donor_passes_per_token")
    assert [line.split(",")[0] for line in frontier[1::2]] == ["base", "guided", "random", "guide"]
    main([*words, "--limit", "1"])  # another setting is another result
    assert len(harness.started) == 8


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_comparison_goes_on_and_ends_with_the_same_table(harness, tmp_path, capsys, stop):
    def die(words):
        write_results(Path(value_of(words, "--output_path")), {"takeover_demo": [0, 0]}, run=takeover("guide"))
        raise stop

    words = [*DEMO_WORDS, "--format", "json", "--run_dir"]
    assert main([*words, str(tmp_path / "whole")]) == 0
    whole = json.loads(capsys.readouterr().out)
    harness.started.clear()
    harness.faults[3] = die
    if stop is KeyboardInterrupt:
        assert main([*words, str(tmp_path / "cut")]) == 130
        assert "the same command goes on from there" in capsys.readouterr().err
    else:
        with pytest.raises(stop):
            main([*words, str(tmp_path / "cut")])
    harness.started.clear()
    assert main([*words, str(tmp_path / "cut")]) == 0
    assert [arguments_of(call)["policy"] for call in harness.started] == ["guide", "random"]
    resumed = json.loads(capsys.readouterr().out)
    for board in (whole, resumed):
        for row in board["rows"]:
            del row["results"]
    assert resumed == whole


def test_a_failed_row_ends_the_command_with_its_status(harness, tmp_path, capsys):
    def fail(words):
        raise CallFailed(2)

    harness.faults[2] = fail
    assert main([*DEMO_WORDS, "--run_dir", str(tmp_path)]) == 2
    assert "a row failed; what was finished is kept" in capsys.readouterr().err


def test_two_comparisons_in_one_folder_are_refused(harness, tmp_path):
    def second(words):
        with pytest.raises(RunDirError, match="is in use by process"):
            main([*DEMO_WORDS, "--run_dir", str(tmp_path)])

    harness.faults[1] = second
    assert main([*DEMO_WORDS, "--run_dir", str(tmp_path)]) == 0


def test_arguments_of_a_real_pair_reach_all_rows(harness, tmp_path, capsys):
    words = ["compare", "--base", str(DEMO["base"]), "--guide", str(DEMO["guide"]), "--tasks", "takeover_demo", "--run_dir",
             str(tmp_path), "--rows", "guided,random,thinking=acme/Thinker", "--calibration", "demo",
             "--target-rate", "0.08", "--apply-chat-template",
             "--enable-thinking", "True", "--gen-kwargs", "temperature=0.7,max_gen_toks=99",
             "--limit", "2", "--batch-size", "7", "--device", "cpu", "--guide-device", "cpu", "--dtype", "float32",
             "--seed", "3", "--model_args", "max_length=500", "--thinking-batch-size", "2"]  # fmt: skip
    assert main(words) == 0
    guided, thinking, random = harness.started
    for call in harness.started:
        assert "--apply_chat_template" in call
        expected = {"--gen_kwargs": "temperature=0.7,max_gen_toks=99", "--limit": "2", "--device": "cpu", "--seed": "3"}
        assert {option: value_of(call, option) for option in expected} == expected
        assert (arguments_of(call)["enable_thinking"], arguments_of(call)["dtype"]) == ("True", "float32")
    assert {
        "calibration": "demo",
        "target_rate": "0.08",
        "max_length": "500",
        "model": "guided",
        "guide_device": "cpu",
    }.items() <= (arguments_of(guided).items())
    assert arguments_of(random)["rate"] == "0.08"  # what the guided run realized
    assert (value_of(thinking, "--model"), arguments_of(thinking)["pretrained"]) == ("hf", "acme/Thinker")
    assert (value_of(guided, "--batch_size"), value_of(thinking, "--batch_size")) == ("7", "2")
    assert "Thinker (thinking)" in capsys.readouterr().out
    for call in harness.started:
        assert parse_stock(call).tasks == ["takeover_demo"]  # the stock command takes them


def plan(tmp_path, *words):
    options = command_options(tmp_path, *words)
    loads = workload.read_workload(options)
    return budget_parameters.plan_calibration(
        options, rows.plan_rows(options), loads[0].sampling, loads[0].tokens, loads[0].task
    )


def command_options(tmp_path, *words):
    from lm_eval_takeover.cli import build_parser

    options = build_parser().parse_args(["compare", "--tasks", "takeover_demo", "--run_dir", str(tmp_path), *words])
    command._check(options)
    return options


def test_a_calibration_is_measured_only_where_none_fits(tmp_path):
    fits = plan(tmp_path)
    assert (fits.words, fits.calibration) == ((), None)
    other = plan(tmp_path, "--target_rate", "0.07", "--num_prompts", "4", "--batch_size", "8")
    assert other.words[0] == "calibrate" and value_of(other.words, "--methods") == "ce@0.07"
    assert value_of(other.words, "--max_gen_toks") == "320" and value_of(other.words, "--temperature") == "0.6"
    assert other.calibration == str(other.out) == value_of(other.words, "--out")
    for words in (["--gen_kwargs", "temperature=0.9"], ["--apply_chat_template"], ["--model_args", "score=rkl"]):
        assert plan(tmp_path, *words).words, words
    by_hand = plan(tmp_path, "--model_args", "tau=1.5")
    assert (by_hand.words, by_hand.calibration) == ((), None)
    reverse = plan(tmp_path, "--direction", "reverse")
    assert value_of(reverse.words, "--direction") == "reverse"
    assert plan(tmp_path, "--model_args", "direction=reverse").words == reverse.words
    grid = plan(tmp_path, "--rows", "base,ce,entropy,segment:length=4@0.3", "--rates", "0.02,0.05").words
    methods = grid[grid.index("--methods") + 1 : grid.index("--nearest")]
    assert methods == ("ce@0.02:0.05", "entropy@0.02:0.05", "segment:length=4@0.3")


def test_what_was_measured_is_taken_up_and_extended(tmp_path, monkeypatch):
    words = ["--target_rate", "0.07"]
    out = plan(tmp_path, *words).out
    out.write_text("{}")
    monkeypatch.setattr(budget_parameters, "read_calibration", lambda path: path)
    monkeypatch.setattr(budget_parameters, "_fits", lambda calibration, *rest: calibration == out)
    assert plan(tmp_path, *words).words == ()
    monkeypatch.setattr(budget_parameters, "_fits", lambda calibration, *rest: False)
    assert "--extend" in plan(tmp_path, *words).words
    assert plan(tmp_path, "--target_rate", "0.09").out == out  # one file for all rates


def test_rows_are_methods_at_rates(tmp_path):
    options = command_options(
        tmp_path, "--rows", "guide,base,guided,ce,random,lossy@0.1,log_ratio:tau=0.5", "--rates", "0.05,0.01"
    )
    planned = {row.label: row for row in rows.plan_rows(options)}
    assert list(planned) == [
        *(
            "base",
            "guided",
            "ce@0.01",
            "ce@0.05",
            "lossy@0.1",
            "log_ratio-tau-0.5",
            "random@0.01",
            "random@0.05",
            "guide",
        )
    ]
    assert (planned["guided"].rate, planned["ce@0.01"].rate, planned["log_ratio-tau-0.5"].rate) == (0.05, 0.01, None)
    assert planned["ce@0.05"].arguments == {"policy": "disagreement", "score": "ce"}
    assert {planned["guided"].family, planned["ce@0.01"].family} == {"ce"}
    assert planned["lossy@0.1"].method.settings == {"policy": "lossy"}
    following = {row.label: row for row in rows.plan_rows(command_options(tmp_path, "--rows", "base,random,guided"))}
    assert following["random"].follows and following["random"].rate is None


def test_the_guided_row_takes_the_entropy_by_score_or_by_policy(tmp_path):
    for word in ("score=entropy", "policy=entropy"):
        (row,) = rows.plan_rows(command_options(tmp_path, "--rows", "guided", "--model_args", word))
        assert row.method.policy.name == "entropy"


def test_rows_that_follow_take_the_guided_rate_of_each_task(tmp_path):
    options = command_options(tmp_path, "--rows", "guided,random,early")
    _, random, early = rows.plan_rows(options)
    tasks = {"takeover_amc23": 0.03, "takeover_demo": 0.09}
    for row in (random, early):
        calls = running.plan_calls(options, row, None, list(tasks), tasks)
        assert [arguments_of(call.words)["rate"] for call in calls] == ["0.03", "0.09"]
        assert [value_of(call.words, "--tasks") for call in calls] == list(tasks)
        assert len({arguments_of(call.words)["run_dir"] for call in calls}) == 1


def test_a_dry_run_says_what_would_run_and_what_it_takes(tmp_path, capsys):
    words = [*DEMO_WORDS, "--run_dir", str(tmp_path / "new"), "--dry_run", "--format", "md", "--limit", "25"]
    assert main([*words, "--tokens_per_second", "100,guide=50", "--mean_tokens", "200"]) == 0
    printed = capsys.readouterr().out
    assert "| takeover_demo | 25 | 8 | 200 | 64,000 |" in printed
    assert "| base | 200 | 40,000 | 40,000 | 0 | 0.11 |" in printed
    assert "| guided | 200 | 40,000 | 63,279 | 3,164 | 0.11 |" in printed
    assert "| guide | 200 | 40,000 | - | - | 0.22 |" in printed
    assert "| guide | 1.6 M |" in printed
    assert printed.count("lm_eval --model guided-takeover") == 4
    assert not (tmp_path / "new").exists()
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "Hours need --tokens_per_second, or --probe." in printed and "16,384 new tokens (appendix A.1)" in printed


def test_a_probe_measures_speed_and_passes(harness, tmp_path, capsys):
    words = [*DEMO_WORDS, "--run_dir", str(tmp_path), "--dry_run", "--probe", "--format", "md", "--limit", "25"]
    assert main([*words, "--mean_tokens", "200", "--rows", "base,guided"]) == 0
    printed = capsys.readouterr().out
    assert "| guided | 200 | 40,000 | 44,000 | 10,000 | 0.67 |" in printed  # 1,000 tokens in 60 s, 1,100 and 250 passes
    assert "Measured by --probe on base, guided: one problem, short texts" in printed
    for call in harness.started:
        assert value_of(call, "--limit") == "1" and "max_gen_toks=256" in value_of(call, "--gen_kwargs")
        assert str(tmp_path / "probe") in value_of(call, "--output_path")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--rows", "bsae"], "--rows 'bsae' is not known; did you mean 'base'?"),
        (["--rows", "base@0.1"], "--rows base: the base alone has neither rates nor arguments"),
        (["--rows", "ce@0.1:2"], "--rows 'ce@0.1:2': '2' is no rate"),
        (["--rows", "ce:tau@0.1"], "--rows 'ce:tau@0.1': 'tau' is not argument=value"),
        (["--rows", "ce:tau=1@0.1"], "its arguments say already how much the donor writes"),
        (["--rows", "ce:lenght=3"], "unknown model argument 'lenght'"),
        (["--rows", "ce,ce"], "--rows names ce twice"),
        (
            ["--model_args", "score=js", "score_top_p=0.95"],
            "score_top_p=0.95: calibrations hold scores of whole distributions",
        ),
        (["--rows", "thinking"], "--rows 'thinking': thinking=MODEL names a model"),
        (["--model_args", "windw=3"], "unknown model argument 'windw'; did you mean 'window'?"),
        (["--model_args", "run_dir=x"], "--model_args run_dir=… is set by compare itself"),
        (["--model_args", "tau=1", "--target_rate", "0.1"], "--target_rate 0.1 would be ignored beside tau=…"),
        (["--target_rate", "0"], "target_rate=0.0 is outside 0..1"),
        (["--base", str(DEMO["base"])], "--base and --guide go together"),
        (["--model_args", "score=cee"], "score='cee' is not known; did you mean 'ce'?"),
        (["--gen_kwargs", "temperature=hot"], "--gen_kwargs temperature=hot is not a number"),
        (["--prompts", "nothing.jsonl"], "--prompts 'nothing.jsonl' does not exist; expected a JSONL file"),
        (["--calibration", "demo", "--target_rate", "0.07"], "'demo' was not solved for target_rate=0.07 with ce"),
        (["--calibration", "demo", "--rows", "base,lossy@0.02"], "calibrate --prompts "),
        (["--limit", "0"], "--limit 0 is not a number above 0"),
        (["--batch_size", "many"], "batch_size=many is neither 'auto' nor a whole number"),
        (["--tokens_per_second", "gide=3"], "--tokens_per_second 'gide' is not a row; did you mean 'guide"),
    ],
)
def test_wrong_calls_are_one_line_before_anything_runs(tmp_path, words, text):
    with pytest.raises(TakeoverError) as caught:
        command_options(tmp_path, *words)
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_task_names_the_nearest(tmp_path):
    with pytest.raises(ArgumentError, match="--tasks 'takeover_demmo' is not known; did you mean 'takeover_demo'"):
        main(["compare", "--tasks", "takeover_demmo", "--run_dir", str(tmp_path)])


def test_a_call_that_fails_names_its_log_where_all_that_it_printed_is(monkeypatch, tmp_path, capfd):
    def fail(words):
        os.write(1, b"a notice of lm-eval\n")
        raise ArgumentError("it has no such model")

    monkeypatch.setattr(worker, "run_stock", fail)
    call = {"row": "guided", "words": [], "results": str(tmp_path / "results"), "log": str(tmp_path / "row" / "log")}
    with pytest.raises(ArgumentError, match="no such model"):
        worker.run_calls([call])
    assert capfd.readouterr().err == f"guided: failed; all that it printed is in '{tmp_path}/row/log'\n"
    assert (tmp_path / "row" / "log").read_text() == "a notice of lm-eval\n"
    assert not (tmp_path / "results").exists()


def test_all_calls_of_a_worker_share_what_lm_eval_reads(monkeypatch):
    asked = []
    monkeypatch.setattr(TaskIndex, "build", staticmethod(lambda paths: asked.append(paths) or {"task": 1}))
    monkeypatch.setattr(collect_env, "get_pretty_env_info", lambda: asked.append("machine"))
    worker.read_harness_once()
    for _ in range(2):
        index = TaskIndex.build([Path("tasks")])
        collect_env.get_pretty_env_info()
        assert index.pop("task") == 1  # nobody else's
    assert asked == [(Path("tasks"),), "machine"]


def test_a_process_that_fails_ends_the_command_with_its_status(monkeypatch, tmp_path):
    (tmp_path / "failing.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    with pytest.raises(CallFailed) as caught:
        start_worker(["failing"])
    assert caught.value.status == 3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_comparison_leaves_no_process_behind(tmp_path):
    (tmp_path / "sleeping.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\ntime.sleep(60)"
    )
    code = "from lm_eval_takeover.commands.compare.processes import start_worker; start_worker(['sleeping'])"
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"), cwd=tmp_path
    )
    deadline = time.monotonic() + 30
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    child = int((tmp_path / "pid").read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("metrics", "said"), [({"bleu": bleu}, "the metric bleu"), ({}, "no metric")])
def test_a_task_without_a_share_of_right_answers_is_refused_before_anything_runs(metrics, said):
    task = SimpleNamespace(aggregation=lambda: metrics)
    with pytest.raises(ArgumentError, match=f"--tasks mine has {said}; expected one that says of each sample"):
        workload._check_metric("mine", task)
    workload._check_metric("mine", SimpleNamespace(aggregation=lambda: {"f1": len, "exact_match": mean}))

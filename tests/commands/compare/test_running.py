"""`compare` from its first row to its tables; and the process that runs the rows: its logs, its exit status, its end."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from itertools import product
from pathlib import Path
from shlex import split

import pytest
from draw_demo_results import count_decisions, read_comparison  # the demo's figures, from a comparison
from helpers.one_line import one_line
from helpers.pairs import ROOT
from helpers.plugins import EVERY
from helpers.processes import environment, wait_until
from helpers.results import takeover, write_results
from helpers.stock import comparing_here

from lm_eval_takeover import model
from lm_eval_takeover.backends import open_backend
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.compare import running, worker
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, TakeoverError
from lm_eval_takeover.results.files import read_run
from lm_eval_takeover.runs.run_reader import read_run_folder

WORDS = ["compare", "--tasks", "takeover_demo", "--target_rate", "0.05"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory, demo_runs):
    """The demo pair compared on 4 problems, as `make demo` does it with more of them; most of it is finished already."""
    run_dir = tmp_path_factory.mktemp("demo")
    for name, folder in demo_runs.items():
        shutil.copytree(folder, run_dir / name / "samples")
    with comparing_here():
        assert main([*WORDS, "--limit", "4", "--batch_size", "32", "--run_dir", str(run_dir)]) == 0
    return run_dir, json.loads((run_dir / "leaderboard.json").read_text())


def test_a_few_takeovers_restore_what_the_guide_knows(demo):
    rows = {row["kind"]: row for row in demo[1]["rows"]}
    acc = {kind: row["average"]["acc"] for kind, row in rows.items()}
    assert list(acc) == ["base", "random", "guided", "guide"]
    assert acc["base"] <= 0.35 and acc["guide"] >= 0.90
    assert acc["guided"] - acc["base"] >= 0.9 * (acc["guide"] - acc["base"])
    assert rows["guided"]["realized_rate"] <= 0.06
    assert acc["random"] - acc["base"] <= 0.4 * (acc["guide"] - acc["base"])
    assert rows["random"]["nominal"] == rows["guided"]["realized_rate"]
    assert demo[1]["warnings"] == []
    costs = {row["row"]: row for row in demo[1]["costs"]}
    assert costs["base"]["guide_passes"] == 0 == costs["base"]["takeovers"]
    assert 0 < costs["guided"]["guide_passes"] < costs["guided"]["tokens"] < costs["guided"]["base_passes"] * 2
    for label, row in costs.items():  # one clock: later rows of the process take no time of it
        assert 0 < row["seconds"] == pytest.approx(read_run_folder(demo[0] / label / "samples").seconds, abs=1e-3)
    guided, random = costs["guided"], costs["random"]
    assert 0 < guided["changed"] <= guided["takeovers"] and guided["asked"] == guided["tokens"]
    assert random["changed"] is None and random["asked"] == random["takeovers"]


def test_the_gate_finds_the_true_decisions(demo):
    takeovers, decisions, both = count_decisions(demo[0] / "guided" / "samples")
    assert both / decisions >= 0.8 and both / takeovers >= 0.3
    figures = read_comparison(demo[0])
    assert [row["method"] for row in figures["methods"]] == ["base alone", "random", "guided", "guide alone"]


@pytest.fixture
def harness(monkeypatch):
    """Stands for the worker. `started` are the commands so far; `faults` says what else happens at the nth one.

    `unreadable` are optional tasks that lm-eval leaves out.
    """

    class Harness:
        started, faults, unreadable = [], {}, set()

    def write(call):
        Harness.started.append(call.options)
        if action := Harness.faults.pop(len(Harness.started), None):
            action(call)
        folder, given = Path(call.options["output_path"]), call.options["model_args"]
        target = given.get("target_rate")
        rate = target or given.get("rate", 0.07)
        counts = {"tokens": 1000, "takeovers": round(1000 * rate), "realized_rate": rate, "base_passes": 1100}
        tasks = [task for task in call.options["tasks"] if task not in Harness.unreadable]
        told = {"per_task": dict.fromkeys(tasks, counts), "target_rate": target, "guide": given.get("guide", "acme/Large")}
        policy = given.get("policy", "disagreement")
        run = takeover(policy, rate=rate, **told)
        correct = {"base": [0, 1], "guide": [6, 5] if "base" not in given and "guide" in given else [8, 7], "random": [1, 1]}
        date = f"2026-01-01T00-00-{len(Harness.started):02d}"
        write_results(folder, dict.fromkeys(tasks, correct.get(policy, [7, 7]) * 8), run=run, date=date)

    def work(calls, **_):
        for call in calls:
            write(call)

    monkeypatch.setattr(running, "run_batch", work)
    monkeypatch.setattr(running, "run_apart", lambda call, **_: work([call]))
    return Harness


def test_a_command_given_again_makes_the_same_table_and_its_results_alone_stay(harness, tmp_path, capsys):
    words = [*WORDS, "--run_dir", str(tmp_path)]
    assert main(words) == 0
    first = capsys.readouterr()
    assert [call["model_args"].get("policy") for call in harness.started] == ["base", None, "guide", "random"]
    assert "base: lm_eval --model guided-takeover" in first.err and "Recovery is measured against" in first.out
    assert "random: at the rate that the guided row realized on each task." in " ".join(first.out.split())
    assert main(words) == 0
    again = capsys.readouterr()
    assert (again.out, len(harness.started)) == (first.out, 8)
    kept = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("results_*.json"))
    last = ["base/results/5", "guide/results/7", "guided/results/6", "random/results/takeover_demo/8"]
    assert [name.replace("results_2026-01-01T00-00-0", "").removesuffix(".json") for name in kept] == last


def test_another_rate_in_one_folder_is_the_row_and_the_samples_of_both_stay(tmp_path, monkeypatch, caplog):
    """Nothing is loaded where nothing is missing."""
    loaded, seconds = [], []
    monkeypatch.setattr(model, "open_backend", lambda *given: loaded.append(given) or open_backend(*given))
    words = ["compare", "--tasks", "takeover_demo", "--limit", "1", "--gen_kwargs", "max_gen_toks=8", "--rows", "guided"]
    with comparing_here():
        for rate in (0.05, 0.02, 0.05):
            assert main([*words, "--target_rate", str(rate), "--run_dir", str(tmp_path), "--quiet"]) == 0
            (row,) = json.loads((tmp_path / "rows.json").read_text())
            takeover = read_run(*(tmp_path / row["results"][0]).glob("results_*.json")).takeover
            identities = {task: own["identity"] for task, own in takeover["per_task"].items()}
            assert read_run_folder(tmp_path / "guided").takeover["target_rate"] == rate
            assert (takeover["target_rate"], json.loads((tmp_path / "guided" / "row.json").read_text())) == (rate, identities)
            seconds.append(takeover["seconds"])
            assert ("0 of 8 samples can be used; earlier ones differ in policy" in caplog.text) is (rate == 0.02)
            caplog.clear()
    assert takeover["attempts"] == 2 and len(loaded) == 2  # the last one found all that the first one wrote
    assert seconds[0] == seconds[2] > 0  # and took no time of it
    assert takeover["parameters"].keys() == takeover["dtypes"].keys() == {"base", "guide"}


def test_leaderboard_and_compare_print_one_table_wherever_it_is_called_from(harness, tmp_path, printed, answered, monkeypatch):
    """One reference, one set of names, one order: also where one row is asked for, and where the folder here has a row's name."""
    rows = "guided,thinking=acme/Small,base,random,guide"
    _, board = answered(*WORDS, "--rows", rows, "--run_dir", tmp_path)
    named = {row["model"]: row for row in board["rows"]}
    assert list(named) == ["guided", "thinking", "base", "random", "guide"]
    assert {row["kind"] for row in named.values()} == {"guided", "thinking", "base", "random", "guide"}
    assert named["guided"]["reference"] == "thinking" and named["guided"]["recovery"]["acc"] == pytest.approx(13 / 10)
    assert answered("leaderboard", tmp_path) == (0, {name: board[name] for name in ("rows", "warnings")})
    _, some = answered("leaderboard", tmp_path / "thinking", tmp_path / "guided")
    assert [row["kind"] for row in some["rows"]] == ["guided", "thinking"]
    (tmp_path / "elsewhere" / "base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for versus in ("base", str(tmp_path / "base")):
        assert "Differences from base" in " ".join(printed("leaderboard", tmp_path, "--vs", versus).split())


def test_rows_that_follow_take_the_rate_of_guided_wherever_it_stands(harness, tmp_path):
    words = ["compare", "--tasks", "takeover_demo", "--rows", "ce@0.02,guided,random", "--run_dir", str(tmp_path)]
    assert main(words) == 0
    rates = [call["model_args"].get("rate", call["model_args"].get("target_rate")) for call in harness.started]
    assert rates == [0.02, 0.05, 0.05]


def test_a_task_that_cannot_be_read_is_left_out_of_rows_that_follow(harness, tmp_path, answered):
    harness.unreadable = {"takeover_demo_graded"}
    words = ["compare", "--tasks", "takeover_demo,takeover_demo_graded", "--rows", "base,guided,random"]
    _, board = answered(*words, "--run_dir", tmp_path)
    assert [list(row["tasks"]) for row in board["rows"]] == [["takeover_demo"]] * 3


def test_a_policy_of_the_users_own_without_a_rate_is_a_row(harness, tmp_path):
    (tmp_path / "every.py").write_text(EVERY)
    words = ["compare", "--tasks", "takeover_demo", "--run_dir", str(tmp_path / "run"), "--rows"]
    for given in (["--plugins", f"{tmp_path}/every.py"], ["--model_args", f"plugins={tmp_path}/every.py"]):
        assert main([*words, "base,test_every:period=5", *given]) == 0
        expected = {"policy": "test_every", "period": 5, "plugins": str(tmp_path / "every.py")}
        assert expected.items() <= harness.started[-1]["model_args"].items()
        assert "target_rate" not in harness.started[-1]["model_args"]
    with pytest.raises(ArgumentError, match="test_every has no budget_parameter that a rate could be solved by"):
        main([*words, "test_every@0.1", *given])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--tasks", "takeover_demmo"], "--tasks 'takeover_demmo' is not known; did you mean 'takeover_demo'"),
        (["--metadata", "[1]"], "--metadata '[1]' is neither NAME=VALUE,… nor a map in JSON"),
        (["--group", "kind"], "takeover_demo: the document has no value in 'kind' (--group)"),
        (["--gen_kwargs", "temperature=hot"], "could not convert string to float: 'hot'"),
        (["--rows", "base,entropi@0.05"], "--rows 'entropi' is not known; did you mean 'entropy'?"),
        (["--rows", "base@0.1"], "--rows base@0.1: policy=base has no budget_parameter"),
        (["--rows", "ce:tau=1@0.1"], "its arguments set already how many tokens are taken over"),
        (["--rows", "ce,ce"], "--rows names ce twice"),
        (["--rows", "base:policy=random"], "--rows base: policy=random makes it another row; name that one"),
        (["--rows", "js:score_top_p=0.95:spike_ratio=0.1"], "score_top_p=0.95 needs target_rate=…"),
        (["--model_args", "run_dir=x"], "--model_args run_dir=… is set by compare itself"),
        (["--model_args", "tau=1"], "--model_args tau=… belongs to a row, as in --rows js,ce:tau=1.5"),
        (["--base", str(DEMO["base"])], "--base and --guide go together"),
        (["--prompts", "nothing.jsonl"], "--prompts 'nothing.jsonl' does not exist; expected a JSONL file"),
        (["--calibration", "demo", "--target_rate", "0.07"], "'demo' was not solved for target_rate=0.07 with ce"),
        (["--batch_size", "many"], "batch_size='many' is not a whole number"),
    ],
)
def test_wrong_calls_are_one_line_before_anything_runs(harness, tmp_path, words, text):
    with one_line(TakeoverError, text):
        main(["compare", "--tasks", "takeover_demo", *words, "--run_dir", str(tmp_path / "new")])
    assert not harness.started and not (tmp_path / "new").exists()


def test_two_comparisons_in_one_folder_and_one_that_is_moved_are_refused(harness, tmp_path, capsys):
    run_dir = tmp_path / "run"

    def second(call):
        with pytest.raises(ArgumentError, match="is in use by process"):
            main([*WORDS, "--run_dir", str(run_dir)])
        run_dir.rename(tmp_path / "moved")
        raise worker.CallFailed(2, [])  # as a row does that finds its own folder gone

    harness.faults[1] = second
    with pytest.raises(ArgumentError, match="was moved or removed; give the same command with its new place"):
        main([*WORDS, "--run_dir", str(run_dir)])
    assert "a row failed" not in capsys.readouterr().err


def test_arguments_of_a_real_pair_reach_all_rows(harness, tmp_path):
    words = ["compare", "--base", str(DEMO["base"]), "--guide", str(DEMO["guide"]), "--tasks", "takeover_demo", "--run_dir",
             str(tmp_path), "--rows", "guided,random,thinking=acme/Thinker", "--calibration", "demo",
             "--target-rate", "0.08", "--apply-chat-template", "--enable-thinking", "True", "--gen-kwargs",
             "temperature=0.7,max_gen_toks=99", "--limit", "2", "--batch-size", "7", "--device", "cpu", "--guide-device", "cpu",
             "--dtype", "float32", "--seed", "3", "--model_args", "max_length=500", "guide_revision=main"]  # fmt: skip
    assert main(words) == 0
    guided, thinking, random = harness.started
    for call in harness.started:
        expected = {"limit": 2, "device": "cpu", "seed": 3, "batch_size": 7, "apply_chat_template": True}
        assert (expected | {"gen_kwargs": {"temperature": 0.7, "max_gen_toks": 99}}).items() <= call.items()
        assert {"enable_thinking": True, "dtype": "float32", "max_length": 500}.items() <= call["model_args"].items()
    expected = {"calibration": "demo", "target_rate": 0.08, "model": "guided", "guide_device": "cpu"}
    assert (expected | {"guide_revision": "main"}).items() <= guided["model_args"].items()
    assert random["model_args"]["rate"] == 0.08  # what the guided run realized
    own = {"model": "thinking", "policy": "guide", "guide": "acme/Thinker"}
    assert own.items() <= thinking["model_args"].items()
    assert not {"base", "calibration", "target_rate", "guide_revision", "guide_device"} & thinking["model_args"].keys()


def test_a_dry_run_prints_the_work_the_memory_and_all_commands(tmp_path, printed):
    dry = [*WORDS, "--dry_run", "--format", "md", "--limit", "25", "--run_dir", tmp_path / "new"]
    shown = printed(*dry)
    assert "| takeover_demo | 25 | 8 | 200 | 64,000 |" in shown
    assert "| guide | 1.6 M |" in shown
    assert shown.count("lm_eval --model guided-takeover") == 4
    assert not (tmp_path / "new").exists() and "calibration" not in shown
    told = f"| calibration |  |  | {500 + 2 * 12 * 100:,} | {(500 + 2 * 12 * 100) * 320:,} |"
    assert told in printed(*dry, "--rows", "base,guided,ce@0.07")


def test_a_grid_that_is_killed_in_every_row_ends_with_the_same_tables(tmp_path, forked):
    """SIGKILL of the command, its worker inside, three times in each row.

    Seconds differ, since a clock ran; passes would if drafts learned lengths.
    """
    words = split("compare --tasks takeover_demo_graded --rates 0.1 --limit 2 --batch_size 4 --rows")
    words += [f"base,ce,random@0.3,thinking={DEMO['guide']}"]
    words += split("--num_prompts 2 --num_held_out 3 --gen_kwargs max_gen_toks=16 --model_args block_size=4 --quiet --run_dir")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with comparing_here():
        assert main([*words, str(whole)]) == 0
    code = "from helpers.stock import comparing_here\nfrom lm_eval_takeover.cli import main\nwith comparing_here():\n    main"
    die = f"import sys\nsys.path += {sys.path!r}\nfrom helpers.attempt import die\n"
    die += "from lm_eval_takeover.runs.journal import Journal as J\n"
    die += "add, row, left = J.add, sys.argv[1], [None] * int(sys.argv[2])\n"
    die += "J.add = lambda to, *x: (row in str(to.path) and (left.pop() if left else die())) or add(to, *x)\n"
    (tmp_path / "here.py").write_text(f"{die}{code}({[*words, str(killed)]!r})\n")
    killed.mkdir()
    for path in whole.glob("calibration-*.json"):
        shutil.copy(path, killed)

    def count(row):
        for path in killed.glob(f"{row}/samples/*.sqlite"):
            with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as journal:
                return journal.execute("SELECT count(*) FROM samples").fetchone()[0]
        return 0

    rows = ("base", "ce@0.1", "random@0.3", "thinking")
    for kills, (row, more) in enumerate(product(rows, (0, 1, 3))):
        before = count(row)
        process = forked.start(tmp_path / "here.py", row, more)  # dies as it adds one sample more than these
        assert process.wait() == -signal.SIGKILL, process.stderr
        assert [count(each) for each in rows[: kills // 3]] == [16] * (kills // 3) and count(row) == before + more
        assert not (killed / "leaderboard.json").exists() and not (killed / row / "results").exists()
    with comparing_here():
        assert main([*words, str(killed)]) == 0
    tables = [json.loads((folder / "leaderboard.json").read_text()) for folder in (whole, killed)]
    for row in (row for table in tables for row in (*table["rows"], *table["costs"])):
        row |= {"results": None, "cost": {**row.get("cost", {}), "seconds_per_problem": 0}, "seconds": 0}
    assert tables[0] == tables[1] and tables[0]["rows"][1]["reference"] == "thinking"


def test_a_call_that_fails_names_its_log_where_all_that_it_printed_is(monkeypatch, tmp_path, capfd):
    def fail(options):
        os.write(1, b"a notice of lm-eval\n")
        raise ArgumentError("it has no such model")

    monkeypatch.setattr(worker, "run_lm_eval", fail)
    monkeypatch.setattr(worker, "read_harness_once", lambda: None)
    call = worker.Call("guided", worker.LM_EVAL, {"tasks": ["none"]}, tmp_path / "row" / "log")
    with pytest.raises(ArgumentError, match="no such model"):
        worker.run_batch([call])
    assert capfd.readouterr().err == f"guided: failed; all that it printed is in '{tmp_path}/row/log'\n"
    assert (tmp_path / "row" / "log").read_text() == "a notice of lm-eval\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_comparison_leaves_no_process_behind(tmp_path):
    pid = tmp_path / "pid"
    text = f"import os, pathlib, time\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\ntime.sleep(60)"
    (tmp_path / "sleeping.py").write_text(text)
    code = "from lm_eval_takeover.commands.compare.worker import start_worker; start_worker(['sleeping'])"
    known = environment(PYTHONPATH=f"{tmp_path}:{ROOT}")
    parent = subprocess.Popen([sys.executable, "-c", code], env=known, cwd=tmp_path)
    wait_until(lambda: pid.exists() and pid.read_text())
    child = Path(f"/proc/{pid.read_text()}/stat")
    parent.kill()
    parent.wait()
    wait_until(lambda: not child.exists() or child.read_text().split(")")[1][1] == "Z")

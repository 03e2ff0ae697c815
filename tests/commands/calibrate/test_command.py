"""`lm-eval-takeover calibrate` as a user calls it: what it writes, prints and survives; the command of an error works."""

import contextlib
import json
import os
import random
import re
import shlex
import signal
import sqlite3

import pytest
from helpers.pairs import ROOT
from helpers.processes import wait_until
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from puzzle import make_puzzle

from lm_eval_takeover.calibration.files import read_calibration
from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, DEMO, PROMPT
from lm_eval_takeover.errors import ArgumentError, CalibrationError, TakeoverError
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.model import GuidedTakeover

pytestmark = pytest.mark.slow


def test_calibrate_writes_a_file_that_lm_eval_accepts(tmp_path, capsys):
    out = tmp_path / "mine.json"
    call = ["calibrate", "--prompts", str(CALIBRATION_PROMPTS), "--num_prompts", "6", "--out", str(out)]
    assert main(call) == 0
    printed = capsys.readouterr().out
    assert "\nce " in printed and "\njs " not in printed  # --score js was not asked for
    page = out.with_suffix(".md").read_text()
    assert "| ce |" in page and "| js |" not in page
    assert "6 rollouts, " in printed
    assert "few tokens: below a spike ratio of 0.0" in printed
    content = json.loads(out.read_text())
    assert list(content["scores"]) == scores.names()
    assert content["base"]["id"] == "demo-base"
    assert len(content["prompts"]["indices"]) == content["prompts"]["asked"] == 6
    assert (content["decoding"]["max_gen_toks"], content["cut"]) == (16_384, 0)
    lm = GuidedTakeover(calibration=str(out), spike_ratio=0.05, score="rkl")
    assert lm.policy.gate.tau > 0 and lm.get_model_info()["takeover"]["calibration"] == "mine"
    first = out.read_text()
    with pytest.raises(ArgumentError, match=r"mine\.json' exists; give another name, --overwrite, or --extend"):
        main(call)
    assert main([*call, "--overwrite"]) == 0
    assert out.read_text() == first  # deterministic for a seed
    out.unlink()
    with pytest.raises(ArgumentError, match=r"mine\.md' exists;"):  # the page alone
        main(call)


def test_a_calibration_in_a_tasks_form_is_one_that_its_runs_accept(tmp_path, capsys, monkeypatch, caplog):
    """In the chat template and at another temperature, of fewer prompts than asked for."""
    rows = [make_puzzle(random.Random(seed)).text for seed in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"problem": text}) + "\n" for text in rows))
    monkeypatch.chdir(tmp_path)
    pair = ["--base", os.path.relpath(DEMO["base"]), "--guide", os.path.relpath(DEMO["guide"])]
    form = ["--task", "takeover_demo", "--apply_chat_template", "--enable_thinking", "False", "--max_gen_toks", "6"]
    call = ["calibrate", *pair, *form, "--prompts", "rows.jsonl", "--out", "made/mine.json"]
    assert main([*call, "--temperature", "1", "--top_k", "9"]) == 0
    assert "6 rollouts (500 prompts were asked for), 36 tokens; 6 of them (100.0%) were cut" in capsys.readouterr().out
    assert "6 of 6 rollouts (100.0%) did not end within --max_gen_toks 6 or the context, and were cut" in caplog.text
    made = read_calibration(tmp_path / "made" / "mine.json")
    assert made.decoding == {
        "temperature": 1.0, "top_p": 0.95, "top_k": 9, "max_gen_toks": 6, "until": [], "seed": 0
    }  # fmt: skip
    lm = GuidedTakeover(calibration="made/mine.json", spike_ratio=0.03, base=pair[1], guide=pair[3], enable_thinking=False)
    prompt = lm.apply_chat_template([{"role": "user", "content": PROMPT.format(problem=rows[0])}])
    settings = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 9, "max_gen_toks": 2}
    lm.generate_until([Instance("generate_until", {}, (prompt, settings), 0, metadata=("takeover_demo", 0, 1))])
    with pytest.raises(CalibrationError, match="was measured with prompts in the chat template and temperature=1"):
        lm.generate_until([Instance("generate_until", {}, (rows[0], {}), 0, metadata=("takeover_demo", 0, 1))])


def test_a_diagnostic_calibration_is_marked_and_its_benchmark_refuses_it(tmp_path):
    out = tmp_path / "own.json"
    call = ["calibrate", "--task", "takeover_demo", "--diagnostic", "--num_prompts", "3", "--max_gen_toks", "8"]
    assert main([*call, "--out", str(out)]) == 0
    assert read_calibration(out).diagnostic == ("takeover_demo",)
    page = out.with_suffix(".md").read_text()
    assert "- Measured on problems of takeover_demo; runs on these refuse it." in page
    with pytest.raises(CalibrationError, match=r"was measured on problems of takeover_demo \(calibrate --diagnostic\)"):
        simple_evaluate(model=GuidedTakeover(calibration=str(out)), tasks=["takeover_demo"], limit=1)


def test_calibrate_reads_models_and_data_of_the_hub_and_refuses_test_sets(forked_at_hub, tmp_path):
    out = tmp_path / "gsm8k.json"
    options = ["--base", "acme/base@main", "--guide", "acme/guide", "--num_prompts", "3", "--max_gen_toks", "8"]
    done = forked_at_hub.run("lm-eval-takeover", "calibrate", "--prompts", "openai/gsm8k:main", *options, "--out", out)
    assert done.returncode == 0, done.stderr
    content = json.loads(out.read_text())
    assert content["base"]["id"] == "acme/base"
    assert len(content["guide"]["revision"]) == 40  # the hub's commit
    prompts = content["prompts"]
    assert (prompts["dataset"], prompts["split"], prompts["field"]) == ("openai/gsm8k:main", "train", "question")
    assert prompts["template"].startswith("Problem: {{question}}\nPlease reason step by step")
    call = ["calibrate", "--prompts", "Idavidrein/gpqa:gpqa_diamond", "--field", "Question", "--num_prompts", "20"]
    done = forked_at_hub.run("lm-eval-takeover", *call, "--out", tmp_path / "out.json", HF_TOKEN="hf_token")
    assert done.returncode == 2 and not (tmp_path / "out.json").exists()
    assert "takeover_gpqa_diamond: rows" in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--prompts EMPTY", "--prompts 'EMPTY' holds no prompt"),
        ("--prompts WRONG", "--prompts 'WRONG': no text in field 'prompt' (its fields: text); name the field with --field"),
        ("--prompts LONG", "--prompts: all 1 are empty or exceed the context of 2048 tokens"),
        ("--prompts NONE", "does not exist; expected a JSONL file, or a data set of the hub"),
        ("--prompts LONG --target_rate 8", "--target_rate 8.0 is outside 0..1"),
        ("--prompts LONG --score kl", "--score 'kl' is not known; did you mean 'rkl'?"),
        ("--prompts LONG --enable_thinking True", "--enable_thinking True needs --apply_chat_template"),
        ("--prompts LONG --model_args polcy=random", "--model_args polcy=… loads no model; "),
    ],
)
def test_an_error_of_the_user_is_one_line_and_writes_nothing(tmp_path, words, text):
    rows = {"EMPTY": "", "WRONG": '{"text": "hello"}\n', "LONG": json.dumps({"prompt": "word " * 9000}) + "\n"}
    for name, content in rows.items():
        (tmp_path / name).write_text(content)
    call = [str(tmp_path / word) if word in (*rows, "NONE") else word for word in words.split()]
    with pytest.raises(TakeoverError) as caught:
        main(["calibrate", *call, "--out", str(tmp_path / "out.json")])
    assert text in str(caught.value).replace(f"{tmp_path}/", "")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.json").exists()


def count_kept(folder, kind):
    """How many rollouts or results the journal beside a calibration holds."""
    count = 0
    for path in folder.glob(".out.json.*.partial/journal-000.sqlite"):
        with contextlib.closing(sqlite3.connect(path)) as journal:
            count += journal.execute("SELECT count(*) FROM samples WHERE task = ?", (kind,)).fetchone()[0]
    return count


@pytest.fixture
def calibration(forked):
    """Starts `calibrate` on prompts of the demo pair, a group of 5 prompts at a time."""

    def start(out, *options):
        call = ["calibrate", "--prompts", CALIBRATION_PROMPTS, "--batch_size", "5", "--out", out, *options]
        return forked.start("lm-eval-takeover", *call, cwd=ROOT)

    return start


def test_a_calibration_that_is_stopped_and_killed_goes_on_and_ends_with_the_same_file(calibration, tmp_path):
    """Stopped by a signal while it measures, and killed while it solves for a rate; meanwhile nobody else may."""
    options = ["--num_prompts", "15", "--num_held_out", "5", "--target_rate", "0.05", "0.15"]
    options += ["--max_gen_toks", "48"]
    whole, killed = tmp_path / "whole" / "out.json", tmp_path / "killed" / "out.json"
    process = calibration(whole, *options)
    assert process.wait() == 0, process.stderr
    assert "\nce      spike_ratio    5.0%" in process.stdout

    killed.parent.mkdir()
    process = calibration(killed, *options)
    wait_until(lambda: count_kept(killed.parent, "rollouts") >= 10, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert process.stderr.strip().endswith("stopped; what was finished is kept, and the same command goes on from there")
    assert count_kept(killed.parent, "rollouts") % 5 == 0  # whole groups
    process = calibration(killed, *options)
    wait_until(lambda: count_kept(killed.parent, "results"), process)
    process.send_signal(signal.SIGSTOP)
    second = calibration(killed, *options)
    assert second.wait() == 2
    assert "what is measured cannot be kept beside it: run_dir=" in second.stderr.strip().splitlines()[-1]
    process.kill()
    assert not killed.exists()
    process = calibration(killed, *options)
    assert process.wait() == 0, process.stderr
    assert "15 samples from before" in process.stderr
    assert killed.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in killed.parent.iterdir()) == ["out.json", "out.md"]


def test_the_calibrate_command_of_an_error_makes_what_the_run_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 20, "max_gen_toks": 2, "until": []}
    request = Instance("generate_until", {}, ("2 + 2 =", asked), 0, metadata=("a", 0, 1))
    with pytest.raises(CalibrationError) as caught:
        GuidedTakeover(calibration="demo", target_rate=0.05).generate_until([request])
    (command,) = re.findall("`(.*?)`", str(caught.value))
    name, *words = shlex.split(command)
    few = ["--num_prompts", "3", "--num_held_out", "3", "--max_gen_toks", "8"]
    assert name == "lm-eval-takeover" and main([*words, *few]) == 0
    GuidedTakeover(calibration="my-pair.json", target_rate=0.05).generate_until([request])

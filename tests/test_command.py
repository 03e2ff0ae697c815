"""The stock `lm_eval` command and ours, as real processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import CALIBRATION_PROMPTS

pytestmark = pytest.mark.slow
OURS = [sys.executable, "-m", "lm_eval_takeover.cli"]


def environment(**extra):
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | extra


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **({"env": environment()} | options))


def test_the_plain_command_runs_the_demo_task_and_reports_the_takeover(lm_eval_command, tmp_path):
    done = run(
        [lm_eval_command, "--model", "guided-takeover", "--tasks", "takeover_demo", "--limit", "3", "--batch_size", "24",
         "--output_path", tmp_path, "--log_samples"]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "|takeover_demo|" in done.stdout
    for metric in ("acc", "pass@1", "pass@8", "maj@8"):
        assert f"|{metric}" in done.stdout
    (results,) = tmp_path.rglob("results_*.json")
    takeover = json.loads(results.read_text())["config"]["takeover"]
    assert takeover["per_task"]["takeover_demo"]["tokens"] == takeover["tokens"] > 0
    assert 0 < takeover["realized_rate"] < 0.1
    (samples,) = tmp_path.rglob("samples_takeover_demo_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [len(row["resps"][0]) for row in rows] == [8, 8, 8]


def test_real_benchmarks_run_through_their_hub_ids(lm_eval_command, hub, tmp_path):
    from serve_hub import environment as pointed_at

    done = run(
        [lm_eval_command, "--model", "guided-takeover", "--tasks", "takeover_gsm8k,takeover_math500", "--limit", "2",
         "--batch_size", "16", "--model_args",
         "base=acme/base,guide=acme/guide,tau=7.6", "--gen_kwargs", "max_gen_toks=12", "--output_path", tmp_path,
         "--log_samples"],
        env=pointed_at(hub.url, str(tmp_path / "hf-home")) | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.rglob("results_*.json")
    content = json.loads(results.read_text())
    takeover = content["config"]["takeover"]
    assert takeover["base"]["id"] == "acme/base"
    assert len(takeover["guide"]["revision"]) == 40
    assert takeover["per_task"].keys() == {"takeover_gsm8k", "takeover_math500"}
    assert {task: n["original"] for task, n in content["n-samples"].items()} == {
        "takeover_gsm8k": 1319,
        "takeover_math500": 500,
    }
    (samples,) = tmp_path.rglob("samples_takeover_gsm8k_*.jsonl")
    row = json.loads(samples.read_text().splitlines()[0])
    assert row["doc"]["problem"].startswith("Janet")
    assert row["target"] == "18"
    assert [len(judged) for judged in row["filtered_resps"][0]] == [2] * 8  # an answer and an outcome a sample
    assert "\\boxed{}" in row["arguments"]["gen_args_0"]["arg_0"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--model_args", "spike_ration=0.05"],
            "error: unknown model argument 'spike_ration'; did you mean 'spike_ratio'?",
        ),
        (["--model_args", "base=no/such,guide=no/other"], "error: base='no/such' cannot be loaded"),
        (["--gen_kwargs", "max_gen_toks=0", "--limit", "1"], "error: max_gen_toks=0 is not at least 1 token"),
    ],
)
def test_an_error_of_the_user_is_one_line_and_status_2(lm_eval_command, arguments, text):
    done = run([lm_eval_command, "--model", "guided-takeover", "--tasks", "takeover_demo", *arguments])
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith(text)
    assert "Traceback" not in done.stderr


def test_errors_of_others_keep_their_traceback(lm_eval_command):
    done = run(
        [lm_eval_command, "--model", "hf", "--model_args", "pretrained=no/such-model", "--tasks", "takeover_demo"]
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_calibrate_writes_a_file_that_lm_eval_accepts(tmp_path, capsys):
    out = tmp_path / "mine.json"
    call = ["calibrate", "--prompts", str(CALIBRATION_PROMPTS), "--num_prompts", "12", "--out", str(out)]
    assert main(call) == 0
    printed = capsys.readouterr().out
    assert "|ce|" in printed
    assert "12 rollouts" in printed
    assert "few tokens: below a spike ratio of 0.0" in printed
    content = json.loads(out.read_text())
    assert content["scores"].keys() == {"ce", "rkl", "entropy", "js"}
    assert content["base"]["id"] == "demo-base"
    assert len(content["prompts"]["indices"]) == 12
    from lm_eval_takeover.model import GuidedTakeover

    for score in ("ce", "rkl", "js"):
        lm = GuidedTakeover(calibration=str(out), spike_ratio=0.05, score=score)
        assert lm.policy.gate.tau > 0
        assert lm.get_model_info()["takeover"]["calibration"] == "mine"
    assert GuidedTakeover(calibration=str(out), policy="entropy").policy.score == "entropy"
    first = out.read_text()
    assert main(call) == 0
    assert out.read_text() == first  # deterministic for a seed


def test_calibrate_reads_models_and_data_of_the_hub(hub, tmp_path):
    from serve_hub import environment as pointed_at

    out = tmp_path / "gsm8k.json"
    options = ["--base", "acme/base@main", "--guide", "acme/guide", "--num_prompts", "3", "--max_gen_toks", "8"]
    done = run(
        [*OURS, "calibrate", "--prompts", "openai/gsm8k:main", *options, "--out", out],
        env=pointed_at(hub.url, str(tmp_path / "hf-home")),
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(out.read_text())
    assert content["base"]["id"] == "acme/base"
    assert len(content["guide"]["revision"]) == 40  # the hub's commit
    prompts = content["prompts"]
    assert (prompts["dataset"], prompts["split"], prompts["field"]) == ("openai/gsm8k:main", "train", "question")


def test_calibrate_errors_are_one_line_and_status_2(tmp_path):
    empty, wrong = tmp_path / "empty.jsonl", tmp_path / "wrong.jsonl"
    empty.write_text("")
    wrong.write_text('{"text": "hello"}\n')
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"prompt": "word " * 9000}) + "\n")
    out = tmp_path / "out.json"
    for arguments, text in (
        (["--prompts", empty], f"error: --prompts '{empty}' holds no prompt"),
        (["--prompts", wrong], f"error: --prompts '{wrong}': row 1 has no text in field 'prompt' (its fields: text)"),
        (["--prompts", long], "error: --prompts: all 1 prompts are empty or longer than the context of 2048 tokens"),
        (["--prompts", tmp_path / "none.jsonl"], "is no file, and as a hub data set"),
        (["--promts", empty], "error: the following arguments are required: --prompts"),
        (["--prompts", wrong, "--top_p", "2"], "error: top_p=2.0 is outside (0, 1]"),
        (["--prompts", wrong, "--num_prompts", "0"], "error: --num_prompts 0 is not at least 1"),
    ):
        done = run([*OURS, "calibrate", *arguments, "--out", out])
        assert done.returncode == 2, done.stderr
        assert text in done.stderr.strip().splitlines()[-1]
        assert "Traceback" not in done.stderr
        assert not out.exists()


def test_help_has_an_example_and_the_version_is_printed():
    helped = run([*OURS, "calibrate", "--help"])
    assert helped.returncode == 0
    assert "example:\n  lm-eval-takeover calibrate --base" in helped.stdout
    assert run([*OURS, "--version"]).stdout.strip() == "0.1.0"


def test_ctrl_c_stops_calibrate_with_130_and_writes_nothing(tmp_path):
    out = tmp_path / "out.json"
    process = subprocess.Popen(
        [*OURS, "calibrate", "--prompts", CALIBRATION_PROMPTS, "--batch_size", "1", "--out", out],
        stderr=subprocess.PIPE, text=True, env=environment(), cwd=ROOT,
        # A runner that was itself started in the background ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    seen = ""
    deadline = time.monotonic() + 120
    while "Calibrating" not in seen and time.monotonic() < deadline:
        seen += process.stderr.read(1)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert rest.strip().endswith("stopped; nothing was written")
    assert not list(tmp_path.iterdir())

"""The stock `lm_eval` command as a real process: it knows our model type and tasks, and ends as it should."""

import json
import re
import sys
from pathlib import Path

import pytest
from helpers.processes import run

pytestmark = pytest.mark.slow


def test_the_plain_command_runs_the_demo_task_and_reports_the_takeover(tmp_path):
    done = run(
        [Path(sys.executable).with_name("lm_eval"), "--model", "guided-takeover", "--tasks", "takeover_demo", "--limit", "1",
         "--batch_size", "8", "--output_path", tmp_path, "--log_samples"]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(f"|{name}" in done.stdout for name in ("takeover_demo|", "acc", "pass@8", "maj@8", "no_answer"))
    assert not any(f"|{name}" in done.stdout for name in ("pass@1 ", "restated", "unparsed", "timed_out", "unclosed_think"))
    (results,) = (tmp_path / "demo-base+demo-guide-disagreement").glob("results_*.json")
    takeover = json.loads(results.read_text())["config"]["takeover"]
    assert {"pass@1,all", "restated,all"} <= json.loads(results.read_text())["results"]["takeover_demo"].keys()
    closing = f"{takeover['label']}: realized rate {takeover['realized_rate']:.2%}"
    told = rf"^\S+ INFO +\[lm_eval_takeover\S+ {re.escape(closing)} .* tokens\), .* passes of"
    assert re.search(told, done.stderr, re.M)
    assert takeover["per_task"]["takeover_demo"]["tokens"] == takeover["tokens"] > 0
    assert 0 < takeover["realized_rate"] < 0.1
    (samples,) = tmp_path.rglob("samples_takeover_demo_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [len(row["resps"][0]) for row in rows] == [8]


def test_real_benchmarks_run_through_their_hub_ids(forked_at_hub, tmp_path):
    done = forked_at_hub.run(
        "lm_eval", "--model", "guided-takeover", "--tasks", "takeover_gsm8k,takeover_math500", "--limit", "2",
        "--batch_size", "16", "--model_args", "base=acme/base,guide=acme/guide,tau=7.6",
        "--gen_kwargs", "max_gen_toks=12", "--output_path", tmp_path, "--log_samples",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.rglob("results_*.json")
    content = json.loads(results.read_text())
    takeover = content["config"]["takeover"]
    assert takeover["base"]["id"] == "acme/base"
    assert len(takeover["guide"]["revision"]) == 40
    assert takeover["per_task"].keys() == {"takeover_gsm8k", "takeover_math500"}
    counted = {task: n["original"] for task, n in content["n-samples"].items()}
    assert counted == {"takeover_gsm8k": 1319, "takeover_math500": 500}
    (samples,) = tmp_path.rglob("samples_takeover_gsm8k_*.jsonl")
    row = json.loads(samples.read_text().splitlines()[0])
    assert row["doc"]["problem"].startswith("Janet")
    assert row["target"] == "18"
    assert [len(judged) for judged in row["filtered_resps"][0]] == [2] * 8  # an answer and an outcome a sample
    assert "\\boxed{}" in row["arguments"]["gen_args_0"]["arg_0"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--model_args", "base=no/such,guide=no/other"], "error: base='no/such' cannot be loaded"),
        (["--tasks", "no_such_task"], "`lm_eval ls tasks` lists them"),
        (["--limit", "3", "--samples", '{"takeover_demo": [1]}'], "error: If --samples is not None, then --limit must"),
    ],
)
def test_an_error_of_the_user_is_one_line_and_status_2(forked, arguments, text):
    tasks = [] if "--tasks" in arguments else ["--tasks", "takeover_demo"]
    done = forked.run("lm_eval", "--model", "guided-takeover", *tasks, *arguments)
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("error: ") and text in lines[-1]
    assert "Traceback" not in done.stderr


def test_errors_of_others_keep_their_traceback(forked):
    words = ["--model", "hf", "--model_args", "pretrained=no/such-model", "--tasks", "takeover_demo"]
    done = forked.run("lm_eval", *words)
    assert done.returncode == 1
    assert "Traceback" in done.stderr

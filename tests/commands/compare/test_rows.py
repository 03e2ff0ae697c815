"""The calls of a comparison: rows at rates, rows that follow, the calibration that they read; and what is refused before them."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import worlds
from helpers.plugins import MARGIN
from helpers.stock import parse_stock

from lm_eval_takeover.calibration.files import find_calibration, write_calibration
from lm_eval_takeover.commands.compare.comparison import read_comparison
from lm_eval_takeover.commands.compare.planning import plan_calibration, read_workload
from lm_eval_takeover.commands.compare.rows import plan_calls, plan_rows
from lm_eval_takeover.commands.compare.running import check_rows
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.pair.policy_choice import parse_arguments


@pytest.fixture
def ask(tmp_path, parse):
    """The comparison of these words, checked as before a run."""

    def read(*words):
        asked = read_comparison(parse("compare", "--tasks", "takeover_demo", "--run_dir", str(tmp_path), *words))
        check_rows(asked)
        return asked

    return read


def test_rows_are_methods_at_rates(ask):
    words = "guide,base,guided,ce,random,lossy@0.1,log_ratio:tau=0.5"
    planned = {row.label: row for row in plan_rows(ask("--rows", words, "--rates", "0.05,0.01"))}
    assert list(planned) == [
        "guide", "base", "guided", "ce@0.01", "ce@0.05", "random@0.01", "random@0.05", "lossy@0.1", "log_ratio-tau-0.5"
    ]  # fmt: skip
    assert (planned["guided"].rate, planned["ce@0.01"].rate, planned["log_ratio-tau-0.5"].rate) == (0.05, 0.01, None)
    arguments = planned["ce@0.05"].arguments
    assert (arguments.policy, arguments.score, arguments.target_rate) == ("disagreement", "ce", 0.05)
    assert {planned["guided"].family, planned["ce@0.01"].family} == {"ce"}
    assert planned["lossy@0.1"].method.settings == {"policy": "lossy"}


def test_rows_that_follow_take_the_guided_rate_of_each_task(ask):
    asked = ask("--rows", "guided,random,early")
    tasks = {"takeover_amc23": 0.03, "takeover_demo": 0.09}
    for row in plan_rows(asked)[1:]:
        assert row.follows and row.rate is None
        calls = plan_calls(asked, row, None, tasks)
        assert [call.options["model_args"]["rate"] for call in calls] == [0.03, 0.09]
        assert [call.options["tasks"] for call in calls] == [[task] for task in tasks]
        assert len({call.options["model_args"]["run_dir"] for call in calls}) == 1


def test_a_printed_command_is_the_call_that_runs(ask, tmp_path):
    """What people copy from the terminal gives lm-eval and the model what the row itself gave them."""
    words = "--rows guided,segment:length=sentence@0.1,early:early_tokens=3 --seed 3 --limit 0.25 --batch_size 7 --device cpu"
    words += " --apply_chat_template --enable_thinking False"
    lists = ["--metadata", '{"a": [1, 2]}', "--gen_kwargs", "temperature=0.5", "until=['a', 'b']"]
    lists += ["--model_args", "max_length=99", 'quantization_config={"quant_method": "x,y"}']
    asked = ask(*words.split(), *lists, "--include_path", str(tmp_path))
    for row in plan_rows(asked):
        (call,) = plan_calls(asked, row, "cal.json")
        typed = vars(parse_stock(shlex.split(str(call))))
        values = call.options | {"seed": [3] * 4, "batch_size": "7", "include_path": str(tmp_path)}
        assert {name: typed[name] for name in values.keys() - {"model_args"}}.items() <= values.items()
        run = replace(row.arguments, calibration="cal.json" if row.is_calibrated else None)
        own = {"batch_size": 7, "device": "cpu"}
        assert parse_arguments(typed["model_args"] | own) == parse_arguments(call.options["model_args"] | own) == run


@pytest.fixture
def plan(ask):
    def plan(*words):
        asked = ask(*words)
        return plan_calibration(asked, plan_rows(asked), read_workload(asked))

    return plan


def test_a_calibration_is_measured_only_where_none_fits(plan):
    fits = plan()
    assert (fits.options, fits.calibration) == ({}, None)
    other = plan("--target_rate", "0.07", "--num_prompts", "4", "--batch_size", "8")
    expected = {
        "methods": ["ce@0.07"],
        "max_gen_toks": 320,
        "temperature": 0.6,
        "out": Path(other.calibration),
        "batch_size": "8",
    }
    assert expected.items() <= other.options.items()
    for words in (["--gen_kwargs", "temperature=0.9"], ["--apply_chat_template"], ["--rows", "rkl"]):
        assert plan(*words).options, words
    assert "include_path" not in plan("--rows", "rkl", "--include_path", ".").options  # without a task to look up there
    by_hand = plan("--rows", "guided:tau=1.5")
    assert (by_hand.options, by_hand.calibration) == ({}, None)
    assert plan("--direction", "reverse").options["direction"] == "reverse"
    for words in ("--rows js:score_top_p=0.95@0.04", "--model_args score_top_p=0.95 --rows js --rates 0.04"):
        assert "js:score_top_p=0.95@0.04" in plan("--target_rate", "0.04", *words.split()).options["methods"]
    grid = plan("--rows", "base,ce,entropy,segment:length=4@0.3", "--rates", "0.02,0.05").options
    assert grid["methods"] == ["ce@0.02:0.05", "entropy@0.02:0.05", "segment:length=4@0.3"]


@pytest.mark.parametrize("more", ["", ",rkl@0.02"])
def test_a_spike_ratio_is_read_off_the_calibration_that_the_call_measures(plan, ask, more):
    words = ["--rows", f"base,ce:spike_ratio=0.03{more}", "--gen_kwargs", "temperature=0.9", "--field", "question"]
    measured = plan(*words)
    assert measured.options["field"] == "question" and ("methods" in measured.options) is bool(more)
    asked = ask(*words)
    for row in plan_rows(asked):
        (call,) = plan_calls(asked, row, measured.calibration)
        assert call.options["model_args"].get("calibration") == (None if row.name == "base" else measured.calibration)


def test_what_was_measured_is_used_again_and_extended(plan):
    out = Path(plan("--target_rate", "0.07").calibration)
    packaged, _ = find_calibration("demo")
    solved = [replace(target, target_rate=0.07) for target in packaged.targets if target.target_rate == 0.05]
    write_calibration(replace(packaged, targets=tuple(solved)), out)
    assert plan("--target_rate", "0.07").options == {}
    more = plan("--target_rate", "0.09")  # one file for all rates
    assert more.options["extend"] and more.calibration == str(out)


CODE = {
    "judging.py": "from words import RIGHT\n\n\ndef judge(doc, results):\n    return {'acc': float(results[0] == RIGHT)}\n",
    "words.py": "RIGHT = '7'\n",
}


def edit(path):
    """One byte more or another one, as long as it stays readable."""
    if path.suffix == ".safetensors":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    elif path.suffix == ".jsonl":
        path.write_text(path.read_text().replace("7", "8"))
    elif path.suffix == ".yaml":
        path.write_text(path.read_text().replace("max_gen_toks: 4", "max_gen_toks: 5"))
    else:
        path.write_text(path.read_text() + (" \n" if path.suffix == ".json" else "\n# changed\n"))


def test_every_file_that_a_calibration_reads_makes_it_anew_and_no_other(plan, tmp_path, monkeypatch):
    for role in DEMO:
        shutil.copytree(DEMO[role], tmp_path / role)
    data, tasks, score, prompts = (tmp_path / name for name in ("data.jsonl", "tasks", "score.py", "prompts.jsonl"))
    tasks.mkdir()
    for file in (data, prompts):
        file.write_text(json.dumps({"problem": "3 + 4 =", "answer": "7"}) + "\n")
    score.write_text(MARGIN.format(name="mine"))
    for name, code in {**CODE, "mine.yaml": worlds.TASK.format(task="mine", judge="judging.judge", data=data)}.items():
        (tasks / name).write_text(code)
    monkeypatch.syspath_prepend(tasks)
    words = ["--tasks", "mine", "--include_path", str(tasks), "--prompts", str(prompts), "--plugins", str(score)]
    words += [word for role in DEMO for word in (f"--{role}", str(tmp_path / role))]

    def name(*more):
        return plan(*words, "--rows", "guided,mine", *more).calibration

    before = name()
    (tmp_path / "base" / ".hidden").write_text("not read")
    (tasks / "notes.txt").write_text("not read")
    edit(data)  # the problems of the task are none of a calibration
    assert name() == name("--rates", "0.2,0.3") == before
    for path in (
        tmp_path / "base" / "model.safetensors",
        tmp_path / "guide" / "tokenizer.json",
        score,
        prompts,
        *(tasks / file for file in (*CODE, "mine.yaml")),
    ):
        edit(path)
        assert name() != before, path
        before = name()
    assert name("--direction", "reverse") != before

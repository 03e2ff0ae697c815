"""Every model argument that loads a model reaches the models of all commands that load some."""

import json
from typing import get_type_hints

import pytest
from helpers.stock import value_of

from lm_eval_takeover.arguments import KINDS, ModelArguments
from lm_eval_takeover.commands._options import LOADING, PAIR, read_arguments, read_loading, read_stored_pair
from lm_eval_takeover.commands.compare import calls
from lm_eval_takeover.commands.compare.calls import plan_rows, read_workload
from lm_eval_takeover.commands.compare.comparison import read_comparison
from lm_eval_takeover.demo import DEMO

LOADS = [name for name, kind in KINDS.items() if kind.loads and name not in PAIR]
HINTS = get_type_hints(ModelArguments)


def choose_value(name):
    """A value that the argument does not have by default, as JSON has it."""
    if bool in (kinds := getattr(HINTS[name], "__args__", (HINTS[name],))):
        return True
    return {"quant_method": "bitsandbytes", "load_in_4bit": True} if "quantization" in name and str not in kinds else "float32"


def check(parsed, name, value):
    given = parsed if isinstance(parsed, ModelArguments) else ModelArguments.parse(parsed)
    assert getattr(given, name) == value, name


@pytest.fixture(scope="module")
def loads(tmp_path_factory, parse):
    """The work of the demo task, whatever the models are."""
    words = ["compare", "--tasks", "takeover_demo", "--run_dir", str(tmp_path_factory.mktemp("run")), "--rows", "base"]
    return read_workload(read_comparison(parse(*words)))


@pytest.mark.parametrize("name", LOADS)
def test_an_argument_reaches_the_models_of_calibrate_score_and_effects(name, parse):
    value = choose_value(name)
    words = ["--model_args", json.dumps({name: value})]
    calibrate = ["calibrate", "--prompts", "p", "--out", "o.json"]
    check(read_loading(parse(*calibrate, *words)), name, value)
    if name in LOADING:
        option = [f"--{name}", *([] if value is True else [value])]
        check(read_loading(parse(*calibrate, *option)), name, value)
        check(read_stored_pair(parse("score", "run", *option)), name, value)
    for stored in (["score", "run"], ["effects", "run", "--out", "o"]):
        check(read_stored_pair(parse(*stored, *words)), name, value)


@pytest.mark.parametrize("name", LOADS)
def test_an_argument_of_compare_reaches_its_rows_and_their_calibration(name, parse, tmp_path, monkeypatch, demo_pair, loads):
    value, loaded = choose_value(name), []
    words = ["compare", "--tasks", "takeover_demo", "--run_dir", str(tmp_path), "--rows", "guided", "--target_rate", "0.07"]
    words += ["--base", str(DEMO["base"]), "--guide", str(DEMO["guide"])]
    given = {
        each: json.dumps(value) if isinstance(value, dict) else value for each, value in {name: choose_value(name)}.items()
    }
    asked = read_comparison(parse(*words, "--model_args", *(f"{each}={value}" for each, value in given.items())))
    (row,) = plan_rows(asked)
    monkeypatch.setattr(calls, "load_pair", lambda given: loaded.append(given) or demo_pair)
    plan = calls.plan_calibration(asked, [row], loads)
    check(loaded[0], name, value)
    check(read_loading(parse(*plan.words)), name, value)
    (call,) = calls.plan_calls(asked, row, plan)
    given = read_arguments(value_of(call.words, "--model_args"))
    check({key: each for key, each in given.items() if KINDS[key].loads}, name, value)

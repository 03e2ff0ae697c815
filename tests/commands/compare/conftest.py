"""Fixtures of `compare`: its checked options, and results that are written without models."""

import json
from pathlib import Path

import pytest
from helpers.results import takeover, write_results
from helpers.stock import arguments_of, value_of

from lm_eval_takeover.commands.compare import command, running


@pytest.fixture
def read_options(tmp_path, parse):
    """The options of these words, checked as before a run."""

    def read(*words):
        options = parse("compare", "--tasks", "takeover_demo", "--run_dir", str(tmp_path), *words)
        command.check_options(options)
        return options

    return read


@pytest.fixture
def harness(monkeypatch):
    """Stands for the worker. `started` are the commands so far; `faults` says what else happens at the nth one."""

    class Harness:
        started, faults = [], {}

    def write(words):
        Harness.started.append(words)
        if action := Harness.faults.pop(len(Harness.started), None):
            action(words)
        folder = Path(value_of(words, "--output_path"))
        if value_of(words, "--model") == "guided-takeover":
            given = arguments_of(words)
            target = float(given["target_rate"]) if "target_rate" in given else None
            rate = target or float(given.get("rate", 0.07))
            counts = {"tokens": 1000, "realized_rate": rate, "base_passes": 1100, "guide_passes": 250}
            run = takeover(given["policy"], rate=rate, per_task={"takeover_demo": counts}, target_rate=target)
            correct = {"base": [0, 1], "guide": [8, 7], "random": [1, 1]}.get(given["policy"], [7, 7])
            write_results(folder, {"takeover_demo": correct * 8}, run=run)
        else:
            model_args = value_of(words, "--model_args")
            write_results(folder, {"takeover_demo": [6, 5] * 8}, model="hf", model_args=model_args)

    def work(words):
        for call in json.loads(Path(words[1]).read_text()):
            write(["lm_eval", *call["words"]])
            (Path(call["results"]) / "call.json").write_text("{}")

    monkeypatch.setattr(running, "start_worker", work)
    return Harness

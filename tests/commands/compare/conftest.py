"""Fixtures of `compare`: its checked options, and results that are written without models."""

import json
from pathlib import Path

import pytest
from helpers.results import takeover, write_results
from helpers.stock import arguments_of, value_of

from lm_eval_takeover.commands.compare import running
from lm_eval_takeover.commands.compare.comparison import read_comparison


@pytest.fixture
def ask(tmp_path, parse):
    """The comparison of these words, checked as before a run."""

    def read(*words):
        asked = read_comparison(parse("compare", "--tasks", "takeover_demo", "--run_dir", str(tmp_path), *words))
        running.check_rows(asked)
        return asked

    return read


@pytest.fixture
def harness(monkeypatch):
    """Stands for the worker. `started` are the commands so far; `faults` says what else happens at the nth one.

    `unreadable` are optional tasks that lm-eval leaves out.
    """

    class Harness:
        started, faults, unreadable = [], {}, set()

    def write(words):
        Harness.started.append(words)
        if action := Harness.faults.pop(len(Harness.started), None):
            action(words)
        folder = Path(value_of(words, "--output_path"))
        given = arguments_of(words)
        target = float(given["target_rate"]) if "target_rate" in given else None
        rate = target or float(given.get("rate", 0.07))
        counts = {"tokens": 1000, "takeovers": round(1000 * rate), "realized_rate": rate, "base_passes": 1100}
        tasks = [task for task in value_of(words, "--tasks").split(",") if task not in Harness.unreadable]
        told = {"per_task": dict.fromkeys(tasks, counts), "target_rate": target, "guide": given.get("guide", "acme/Large")}
        run = takeover(given["policy"], rate=rate, **told)
        correct = {"base": [0, 1], "guide": [6, 5] if "base" not in given and "guide" in given else [8, 7], "random": [1, 1]}
        date = f"2026-01-01T00-00-{len(Harness.started):02d}"
        write_results(folder, dict.fromkeys(tasks, correct.get(given["policy"], [7, 7]) * 8), run=run, date=date)

    def work(calls, **_):
        for call in calls:
            write(["lm_eval", *call["words"]])

    monkeypatch.setattr(running, "run_batch", work)
    monkeypatch.setattr(running, "start_worker", lambda words: work(json.loads(Path(words[1]).read_text())))
    return Harness

"""The demo pair shows the effect: on part of the problems here, on all of them in `make demo`."""

import json

import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.compare.decisions import count_decisions
from lm_eval_takeover.commands.compare.methods import compare_methods, read_guided_run, summarize
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.storage.package_data import data_folder

pytestmark = pytest.mark.slow
LIMIT = 40


def run_guided(limit):
    return simple_evaluate(
        model="guided-takeover",
        model_args={"spike_ratio": 0.045, "batch_size": 320},
        tasks=["takeover_demo"],
        task_manager=TaskManager(include_path=str(data_folder("task_configs")), include_defaults=False),
        limit=limit,
        log_samples=False,
    )


@pytest.fixture(scope="module")
def guided():
    return run_guided(LIMIT)


def write_results(results, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results_now.json").write_text(json.dumps(results, default=str))


def test_a_few_takeovers_restore_what_the_guide_knows(guided):
    rows = compare_methods(guided, batch_size=320, early=True)
    acc = {name: metrics["acc,all"] for name, metrics in rows["results"].items()}
    rate = {name: metrics["realized_rate,all"] for name, metrics in rows["results"].items()}
    assert list(acc) == ["base alone", "random", "early only", "guided", "guide alone"]
    assert acc["base alone"] <= 0.30
    assert acc["guide alone"] >= 0.90
    gap, gain = acc["guide alone"] - acc["base alone"], acc["guided"] - acc["base alone"]
    assert gain >= 0.7 * gap
    assert rate["guided"] <= 0.10
    assert acc["random"] - acc["base alone"] <= gain / 3
    assert acc["early only"] <= acc["guided"] - 0.3
    assert rate["random"] == pytest.approx(rate["guided"], abs=0.01)
    assert "|guided|" in summarize(rows)


def test_the_gate_finds_the_true_decisions(guided):
    takeovers, decisions, both = count_decisions(guided["config"], 64)
    assert both / decisions >= 0.8
    assert both / takeovers >= 0.8


def test_the_command_prints_the_tables(tmp_path, capsys):
    write_results(run_guided(2), tmp_path / "demo")
    assert main(["compare", str(tmp_path), "--batch-size", "16"]) == 0
    printed = capsys.readouterr()
    assert "base alone: policy=base" in printed.err.splitlines()
    assert [line.split("|")[1] for line in printed.out.splitlines() if "%|" in line] == [
        "base alone", "random", "guided", "guide alone"
    ]  # fmt: skip
    assert "The gate against the true decisions, one sample a problem: " in printed.out


def test_comparing_without_a_guided_run_is_an_error_that_says_what_to_run(tmp_path, guided):
    with pytest.raises(ArgumentError, match="holds no results of"):
        read_guided_run(tmp_path)
    write_results(guided | {"config": guided["config"] | {"limit": 0.1}}, tmp_path)
    with pytest.raises(ArgumentError, match=r"--limit 0\.1 of the guided run is a share"):
        read_guided_run(tmp_path)
    with pytest.raises(ArgumentError, match="--batch_size 0 is not at least 1"):
        main(["compare", str(tmp_path), "--batch_size", "0"])

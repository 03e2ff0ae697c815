"""The demo pair shows the effect: on part of the problems here, on all of them in `make demo`."""

import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from lm_eval_takeover.commands.compare import compare, decisions, main, read_guided, summary
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.storage.package_data import data_folder

pytestmark = pytest.mark.slow
LIMIT = 40


@pytest.fixture(scope="module")
def rows():
    tasks = TaskManager(include_path=str(data_folder("task_configs")), include_defaults=False)
    guided = simple_evaluate(
        model=GuidedTakeover(spike_ratio=0.045, batch_size=320),
        tasks=["takeover_demo"],
        task_manager=tasks,
        limit=LIMIT,
    )
    return compare(guided, batch_size=320, early=True)


def test_a_few_takeovers_restore_what_the_guide_knows(rows):
    acc = {name: metrics["acc,all"] for name, metrics in rows["results"].items()}
    rate = {name: metrics["realized_rate,all"] for name, metrics in rows["results"].items()}
    assert acc["base alone"] <= 0.30
    assert acc["guide alone"] >= 0.90
    gap, gain = acc["guide alone"] - acc["base alone"], acc["guided"] - acc["base alone"]
    assert gain >= 0.7 * gap
    assert rate["guided"] <= 0.10
    assert acc["random"] - acc["base alone"] <= gain / 3
    assert acc["early only"] <= acc["guided"] - 0.3
    assert rate["random"] == pytest.approx(rate["guided"], abs=0.01)
    assert "|guided|" in summary(rows)


def test_the_gate_finds_the_true_decisions():
    fired, true, both = decisions(GuidedTakeover(spike_ratio=0.045), LIMIT, 64)
    assert both / true >= 0.8
    assert both / fired >= 0.8


def test_comparing_without_a_guided_run_is_one_line(tmp_path, capsys):
    with pytest.raises(ArgumentError, match="holds no results of"):
        read_guided(tmp_path)
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")

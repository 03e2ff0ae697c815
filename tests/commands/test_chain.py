"""Each command on what the last one left, on a task of one's own with 3 samples: the numbers agree everywhere."""

import json
from pathlib import Path

import pytest
from helpers import stock
from helpers.printed_numbers import check_numbers

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import problems
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.tasks.sampled import find_tasks

pytestmark = pytest.mark.slow
OWN = """
task: my_puzzles
class: !function lm_eval_takeover.tasks.sampled.SampledTask
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
doc_to_text: "Problem: {{{{problem}}}}\\nSolution:"
generation_kwargs:
  until: ["\\nProblem:"]
  max_gen_toks: 320
repeats: 3
metadata:
  version: 1.0
"""


@pytest.fixture
def rows_here(monkeypatch):
    """`compare` runs its rows in this process, with the tasks of the folder `tasks`."""
    monkeypatch.setattr(stock, "find_tasks", lambda names, _: find_tasks(names, Path("tasks")))
    with stock.comparing_here():
        yield


def test_every_command_takes_what_the_last_one_left(rows_here, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    task, run_dir, own, data = "my_puzzles", Path("runs/mine"), ["--include_path", "tasks"], tmp_path / "puzzles.jsonl"
    data.write_text("".join(json.dumps(row | {"family": at // 2}) + "\n" for at, row in enumerate(problems()[:4])))
    Path("tasks").mkdir()
    Path("tasks/my_puzzles.yaml").write_text(OWN.format(data=data))

    def call(*words, status=0):
        assert main([str(word) for word in words]) == status
        return capsys.readouterr().out

    compare = ["compare", "--tasks", task, *own, "--target_rate", "0.05", "--limit", "4", "--batch_size", "48",
               "--rows", "base,guided,guide", "--run_dir", run_dir]  # fmt: skip
    check_numbers(call(*compare, "--quiet"), json.loads((run_dir / "leaderboard.json").read_text()))
    before = json.loads(call("leaderboard", run_dir, "--format", "json"))
    grouped = json.loads(call(*compare, "--quiet", "--group", "family", "--format", "json"))
    assert grouped["rows"] == json.loads(call("leaderboard", run_dir, "--group", "family", "--format", "json"))["rows"]
    spans = [row["average"]["acc_high"] - row["average"]["acc_low"] for board in (before, grouped) for row in board["rows"][:1]]
    assert spans[1] != spans[0]

    call("rescore", run_dir / "guided", *own)
    board = json.loads(call("leaderboard", run_dir, "--format", "json"))
    assert [row["tasks"] for row in board["rows"]] == [row["tasks"] for row in before["rows"]]
    assert sum("the verdicts are those of `rescore`" in line for line in board["warnings"]) == 1
    check_numbers(call("leaderboard", run_dir, "--columns", "intervals", "cost"), board)
    cells = {row["kind"]: row["tasks"][task] for row in board["rows"]}
    assert all((cell["samples"], cell["k"]) == (3, 3) for cell in cells.values())

    with pytest.raises(ArgumentError, match="give 'runs/mine/base', 'runs/mine/guided', 'runs/mine/guide'"):
        call("regress", run_dir, "--baseline", "baseline.json", "--update")
    check = ["regress", run_dir / "guided", "--baseline", "baseline.json"]
    metrics = ["--metric", "acc", "pass@3", "unparsed"]
    assert "is the baseline now: guided, " in call(*check, "--update")
    found = json.loads(call(*check, *metrics, "--format", "json"))
    assert found["verdict"] == "pass" and found["tasks"][task]["now"] == pytest.approx(cells["guided"]["acc"])
    check_numbers(call(*check, *metrics), found)

    assert "12 samples scored" in call("score", run_dir)
    assert "takeovers (" in call("show", run_dir)
    call("analyze", run_dir, "--out", "analysis", "--only", "budget")  # all of them: see `report`
    budget = {row["run"]: row for row in json.loads(Path("analysis/budget.json").read_text()) if row["task"] == task}
    for kind, cell in cells.items():
        found, shown = ([one[name] for name in ("acc", "acc_low", "acc_high")] for one in (budget[kind], cell))
        assert found == pytest.approx(shown)
    call("report", run_dir, "--out", "report.html")
    page = Path("report.html").read_text()
    for cell in cells.values():
        assert f"{cell['acc']:.1%}" in page and f"[{cell['acc_low']:.1%}, {cell['acc_high']:.1%}]" in page
        assert f"{cell['pass3']:.1%}" in page
    assert "Pass@3" in page and page.index("Did it work?") < page.index("Realized rate of each problem")

"""The task of one's own in docs/tasks.md, exactly as it stands there, through the stock command."""

import json
import re
import shlex

import pytest
from helpers.pairs import ROOT

pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs" / "tasks.md").read_text().partition("## A task of your own")[2]


def test_the_task_of_ones_own_runs_as_the_page_has_it(forked, tmp_path):
    named = r"`(my-tasks/[\w.]+\.(?:jsonl|yaml))`[^\n]*:\n\n```\w+\n(.*?)^```$"
    files = re.findall(named, PAGE, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["my-tasks/puzzles.jsonl", "my-tasks/my_puzzles.yaml"]
    for name, text in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = shlex.split(re.search(r"^    (lm_eval .*)$", PAGE, re.MULTILINE)[1])
    done = forked.run(*command, "--output_path", "out", "--log_samples", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.rglob("results_*.json")
    found = json.loads(results.read_text())["results"]["my_puzzles"]
    for metric in ("acc", "acc_completed", "pass@4", "maj@4", "truncated"):
        assert f"{metric},all" in found
    assert "pass@8,all" not in found
    (samples,) = tmp_path.rglob("samples_my_puzzles_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [len(row["resps"][0]) for row in rows] == [4, 4]

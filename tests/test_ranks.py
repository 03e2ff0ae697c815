"""Data parallel: two CPU processes under `accelerate launch` give the results of one, and share a run_dir."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from lm_eval_takeover.ranks import Padding, WithoutPadding
from lm_eval_takeover.run_dir import journals

pytestmark = pytest.mark.slow
LIMIT = 5  # so that one rank has a document more than the other


def launched(ranks, folder, run_dir):
    """The stock command on so many ranks: (samples by document, metrics, config.takeover, what it printed)."""
    # accelerate's own `--cpu` starts one process unless there is MPI; this starts several, which then find no GPU.
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", str(ranks), "--num_machines", "1",
                "--mixed_precision", "no", "--dynamo_backend", "no", "-m"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *(launcher if ranks > 1 else []), "lm_eval", "--model", "guided-takeover", "--tasks",
         "takeover_demo", "--limit", str(LIMIT), "--batch_size", "8", "--model_args",
         f"spike_ratio=0.045,block_size=8,run_dir={run_dir}", "--output_path", str(folder), "--log_samples"],
        capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (results,) = folder.rglob("results_*.json")
    (samples,) = folder.rglob("samples_takeover_demo_*.jsonl")
    content = json.loads(results.read_text())
    rows = {row["doc_id"]: row for row in map(json.loads, samples.read_text().splitlines())}
    metrics = {k: v for k, v in content["results"]["takeover_demo"].items() if "stderr" not in k}
    return rows, metrics, content["config"]["takeover"], done.stderr


def test_one_and_two_ranks_end_with_the_same(tmp_path):
    one = launched(1, tmp_path / "one", tmp_path / "run-1")
    two = launched(2, tmp_path / "two", tmp_path / "run-2")
    assert one[0] == two[0]
    assert [len(row["resps"][0]) for row in two[0].values()] == [8] * LIMIT
    assert one[1] == two[1]
    times = ("run_dir", "attempts", "seconds")
    assert {k: v for k, v in one[2].items() if k not in times} == {k: v for k, v in two[2].items() if k not in times}
    assert [path.name for path in journals(tmp_path / "run-2")] == ["journal-000.sqlite", "journal-001.sqlite"]
    # Another number of ranks uses the samples of all.
    shutil.copytree(tmp_path / "run-2", tmp_path / "run-3")
    again = launched(1, tmp_path / "again", tmp_path / "run-3")
    assert "40 of 40 samples are finished already; 0 are left to write" in again[3]
    assert again[0] == one[0]


def test_padding_leaves_no_trace():
    responses = WithoutPadding(["a"])
    responses.append("b")
    responses.append(Padding())
    assert responses == ["a", "b"]

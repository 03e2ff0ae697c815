"""The benchmark of long texts on a GPU, small on a CPU."""

import subprocess
import sys

import pytest
from helpers.pairs import ROOT


@pytest.mark.slow
def test_the_long_benchmark_runs_small_on_a_cpu():
    words = ["--device", "cpu", "--pair", "demo", "--dtype", "float32", "--rows", "2", "--columns", "256", "--tokens", "8"]
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_long.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    differences = [line.split("|")[-2] for line in done.stdout.splitlines() if line.startswith("|2|256|")]
    assert differences == ["0"] * 3 and "2 texts of 8 tokens" in done.stdout

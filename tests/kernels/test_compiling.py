"""The kernels compile to machine code of GPUs, which needs none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.pairs import ROOT


@pytest.mark.parametrize("architecture", [80, 90], ids=["A100", "H100 and H200"])
def test_the_kernels_compile_once_for_whatever_number_of_rows(architecture):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, str(Path(__file__).parent / "compile_apart.py"), str(architecture)]
    done = subprocess.run(words, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["1"] * 8, done.stdout

"""The kernels compile to machine code of GPUs, which needs none."""

import os
import subprocess
import sys
from pathlib import Path

from helpers.pairs import ROOT


def test_the_kernels_compile_once_for_whatever_number_of_rows():
    """For A100 (sm_80), H100 and H200 (sm_90)."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, str(Path(__file__).parent / "compile_apart.py"), "80", "90"]
    done = subprocess.run(words, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["1"] * 20, done.stdout

"""`scripts/gpu_check.sh` says plainly that there is no GPU, and writes nothing."""

import subprocess
import sys

import pytest
import torch
from helpers.pairs import ROOT


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_check_refuses(tmp_path):
    folder = tmp_path / "figures"
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "gpu_check.sh"), str(folder)],
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "sees no GPU" in done.stderr and done.stderr.count("\n") == 1
    assert not folder.exists()

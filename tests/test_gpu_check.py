"""`scripts/gpu_check.sh` with a Python that stands in: its parts, their limits and its archive."""

import subprocess
import sys
import tarfile

import gpu_long
import pytest
from helpers.pairs import ROOT

PYTHON = """#!/usr/bin/env bash
case "$*" in
  "-c import torch"*) echo True ;;
  "-c"*) exit 0 ;;
  *pip*) echo "torch 2.13.0" ;;
  *gpu_long*) echo begun; exec sleep 60 ;;
  *kernels*) echo "no kernels here" >&2; exit 1 ;;
  *) echo "ran $*" ;;
esac
"""


def run(folder, call, **more):
    python, tools = folder / "python", folder / "tools"
    python.write_text(PYTHON)
    tools.mkdir(exist_ok=True)
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1, 143771 MiB'\n")
    (tools / "timeout").write_text('#!/bin/sh\nshift 2\nexec /usr/bin/timeout 2 "$@"\n')  # every limit is 2 seconds
    for file in (python, *tools.iterdir()):
        file.chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "PYTHON": str(python), "TMPDIR": str(folder)} | more
    words = ["bash", str(ROOT / "scripts" / "gpu_check.sh"), call, str(folder / "out")]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    archive = folder / "out" / f"gpu_check_{call}.tgz"
    if not archive.exists():
        return done, []
    with tarfile.open(archive) as packed:
        return done, sorted(packed.getnames())


@pytest.mark.parametrize("call", ["1", "2", "3"])
def test_every_part_ends_and_the_archive_has_all(tmp_path, call):
    done, names = run(tmp_path, call)
    parts = {"1": ["tests", "demo", "parts", "costs"], "2": ["long", "kernels"], "3": ["batches", "blocks"]}[call]
    assert [name for name in names if name.endswith(".txt")] == sorted(f"./{part}.txt" for part in ["machine", *parts])
    assert "NVIDIA H200" in done.stdout
    failed = {"1": None, "2": "long 124;kernels 1", "3": None}[call]  # it takes too long; it fails
    assert done.returncode == (0 if failed is None else 1) and (failed is None or f"failed: {failed}" in done.stdout)
    limits = [int(line.split("at most ")[1].split()[0]) for line in done.stdout.splitlines() if line.startswith("== ")]
    assert sum(limits) <= 600


def test_a_wrong_call_and_a_python_without_torch_or_a_gpu_are_one_line(tmp_path):
    hidden = {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    for call, said, more in (
        ("4", "1|2|3|vllm", {}),
        ("1", "'/bin/false' has no torch", {"PYTHON": "/bin/false"}),
        ("1", "sees no GPU", hidden),
    ):
        done, packed = run(tmp_path, call, **more)
        assert (done.returncode, done.stderr.count("\n"), packed) == (2, 1, []) and said in done.stderr
    assert not list((tmp_path / "out").rglob("*.t*"))


def test_the_long_benchmark_runs_small_on_a_cpu(monkeypatch, capsys):
    words = ["--pair", "demo", "--dtype", "float32", "--rows", "2", "--columns", "256", "--tokens", "8", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["gpu_long.py", "--device", "cpu", *words])
    gpu_long.main()
    shown = capsys.readouterr().out
    differences = [line.split("|")[-2] for line in shown.splitlines() if line.startswith("|2|256|")]
    assert differences == ["0"] * 3 and "2 texts of 8 tokens" in shown

"""Every command that writes files, on a disk that is full: an error of one line, and the files of before as they were."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest
from helpers.results import takeover, write_results
from helpers.run_dirs import copy_few
from helpers.stock import comparing_here

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import CALIBRATION_PROMPTS
from lm_eval_takeover.errors import TakeoverError

pytestmark = pytest.mark.slow
COMMANDS = {
    "rescore": ["rescore", "guided", "--output_path", "rescored"],
    "score": ["score", "guide"],
    "analyze": ["analyze", "base", "guided", "--out", "analysis", "--only", "budget,rates"],
    "report": ["report", "analysis", "--out", "report.html"],
    "baseline": ["regress", "results", "--baseline", "baseline.json", "--update"],
    "calibrate": ["calibrate", "--prompts", str(CALIBRATION_PROMPTS), "--num_prompts", "2", "--max_gen_toks", "8",
                  "--out", "pair.json", "--overwrite"],
    "compare": ["compare", "--tasks", "takeover_demo", "--limit", "1", "--rows", "base,guide", "--run_dir", "compared",
                "--gen_kwargs", "max_gen_toks=8", "--device", "cpu"],
}  # fmt: skip


@pytest.fixture(scope="module")
def disk(tmp_path_factory, demo_runs):
    """A small disk of its own, with runs and results."""
    folder = tmp_path_factory.mktemp("disk")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("needs a disk that can be filled, and only root may mount one")
    for name, run in demo_runs.items():
        copy_few(run, folder / name)
    write_results(folder / "results", {"takeover_demo": [4, 8, 0, 4]}, run=takeover())
    before = Path.cwd()
    os.chdir(folder)
    with comparing_here():
        assert main(COMMANDS["baseline"]) == main(COMMANDS["analyze"]) == 0  # what other commands read
        yield folder
    os.chdir(before)
    subprocess.run(["umount", "--lazy", folder], check=True)  # a journal may be open still


@contextlib.contextmanager
def full(folder):
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        for size in (2**20, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(bytes(size))
    try:
        yield
    finally:
        filler.unlink()


def read_files(folder):
    """Every file but locks and journals, which have tests of their own."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "filler"]
    return {path: path.read_bytes() for path in files if not path.suffix.startswith((".lock", ".sqlite"))}


def attempt(words):
    """The exit status, and the error's line."""
    try:
        return main(words), ""
    except TakeoverError as error:
        return 2, str(error)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_an_error_of_one_line_and_old_files_stay_whole(disk, name, capsys):
    words = COMMANDS[name]
    if name != "score":  # a second call scores nothing
        assert attempt(words) == (0, "")
    before = read_files(disk)
    with full(disk):
        status, line = attempt(words)
        line = line or capsys.readouterr().err.strip().splitlines()[-1]
    after = read_files(disk)
    print(f"{name}: {status}, {line}")
    assert status == 2 and line and "\n" not in line
    assert before.items() <= after.items()
    assert not any(content for path, content in after.items() if path not in before)
    assert attempt(words)[0] == 0

"""Commands after each other, and on a full disk."""

import contextlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.demo_runs import write_task
from helpers.printed_numbers import check_numbers
from helpers.results import takeover, write_results
from helpers.run_dirs import copy_few
from helpers.stock import comparing_here

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, problems
from lm_eval_takeover.errors import ArgumentError, TakeoverError


@comparing_here()
def test_every_command_takes_what_the_last_one_left(tmp_path, printed, answered, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    task, run_dir, own = "my_puzzles", Path("runs/mine"), ["--include_path", "tasks"]
    rows = [row | {"family": at // 2} for at, row in enumerate(problems()[:4])]
    asked = {"doc_to_text": "Problem: {{problem}}\nSolution:", "repeats": 3}
    asked["generation_kwargs"] = {"until": ["\nProblem:"], "max_gen_toks": 320}
    write_task(tmp_path / "tasks", task, rows, **asked)

    compare = ["compare", "--tasks", task, *own, "--target_rate", "0.05", "--limit", "4", "--batch_size", "48",
               "--rows", "base,guided,guide", "--run_dir", run_dir]  # fmt: skip
    check_numbers(printed(*compare, "--quiet"), json.loads((run_dir / "leaderboard.json").read_text()))
    _, before = answered("leaderboard", run_dir)
    _, grouped = answered(*compare, "--quiet", "--group", "family")
    assert grouped["rows"] == answered("leaderboard", run_dir, "--group", "family")[1]["rows"]
    spans = [row["average"]["acc_high"] - row["average"]["acc_low"] for board in (before, grouped) for row in board["rows"][:1]]
    assert spans[1] != spans[0]

    printed("rescore", run_dir / "guided", *own)
    _, board = answered("leaderboard", run_dir)
    assert [row["tasks"] for row in board["rows"]] == [row["tasks"] for row in before["rows"]]
    assert sum("the verdicts are those of `rescore`" in line for line in board["warnings"]) == 1
    check_numbers(printed("leaderboard", run_dir, "--columns", "intervals", "cost"), board)
    cells = {row["kind"]: row["tasks"][task] for row in board["rows"]}
    assert all((cell["samples"], cell["k"]) == (3, 3) for cell in cells.values())

    with pytest.raises(ArgumentError, match="give 'runs/mine/base', 'runs/mine/guided', 'runs/mine/guide'"):
        printed("regress", run_dir, "--baseline", "baseline.json", "--update")
    printed("rescore", run_dir / "guided", *own, "--verifier", "math_verify")
    check = ["regress", run_dir / "guided", "--baseline", "baseline.json"]
    metrics = ["--metric", "acc", "pass@3", "unparsed"]
    assert "is the baseline now: guided, " in printed(*check, "--update")
    _, found = answered(*check, *metrics)
    assert found["verdict"] == "pass" and found["tasks"][task]["now"] == pytest.approx(cells["guided"]["acc"])
    check_numbers(printed(*check, *metrics), found)
    _, again = answered("regress", run_dir / "guided/samples/rescored", "--baseline", "baseline.json")
    assert again["verdict"] == "pass"  # by the settings of the run itself

    assert "12 samples scored" in printed("score", run_dir)
    assert "takeovers (" in printed("show", run_dir)
    printed("analyze", run_dir, "--out", "analysis", "--only", "budget")  # all of them: see `report`
    printed("report", run_dir, "--out", "report.html")
    page = Path("report.html").read_text()
    for cell in cells.values():
        assert f"{cell['acc']:.1%}" in page and f"[{cell['acc_low']:.1%}, {cell['acc_high']:.1%}]" in page
        assert f"{cell['pass3']:.1%}" in page
    assert "Pass@3" in page and page.index("Did it work?") < page.index("Realized rate of each problem")


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
    with comparing_here(), contextlib.chdir(folder):
        assert main(COMMANDS["baseline"]) == main(COMMANDS["analyze"]) == 0  # what other commands read
        yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # a journal may be open still


@contextlib.contextmanager
def full(folder):
    filler = folder / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(folder).free))
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

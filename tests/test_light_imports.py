"""What every start, task files under any model type, and commands that read runs import leaves the heavy libraries alone."""

import ast
import shutil
import subprocess
import sys

from helpers.pairs import ROOT
from helpers.processes import environment

MODELS = ("torch", "transformers")
LIGHT = ("answers", "tasks", "storage", "results")
READERS = (
    "commands.show.rollout",
    "lab.analyze.tables",
    "lab.frontier.output",
    "lab.report.building",
)  # of files that stand already
HARNESS = (*MODELS, "lm_eval", "datasets", "numpy", "math_verify")
LOGS = str(ROOT / "tests" / "results" / "data" / "hf")

LISTED = """
import sys
found = []
for code, forbidden in {stages!r}:
    exec(code)
    found.append([name for name in forbidden if name in sys.modules])
print(found)
"""

STARTS = "import lm_eval_takeover, lm_eval_takeover.lm_eval_hooks; lm_eval_takeover.register_score"
CALLS = """
import contextlib, io
from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import TakeoverError
for words in {calls!r}:
    with contextlib.suppress(SystemExit, TakeoverError), contextlib.redirect_stdout(io.StringIO()):
        main(words)
"""
HELP = [["--help"], ["calibrate", "--help"]]
READ = [["leaderboard", LOGS], ["regress", LOGS, "--baseline", LOGS]]
READ += [["score", "no/run.json"], ["effects", "no/run.json", "--dry_run", "--out", "no"]]


def modules_of(folder):
    package = ROOT / "lm_eval_takeover" / folder
    names = sorted(path.stem for path in package.glob("*.py") if path.stem != "__init__")
    assert names
    return [f"lm_eval_takeover.{folder}.{name}" for name in names]


def test_imports_are_light():
    """In one process, where each step may load more than the one before."""
    stages = [
        (STARTS + CALLS.format(calls=HELP), HARNESS),
        (f"import {', '.join(f'lm_eval_takeover.{name}' for name in READERS)}", (*MODELS, "datasets", "lm_eval")),
        (CALLS.format(calls=READ), (*MODELS, "datasets", "lm_eval", "scipy.stats")),
        (f"import {', '.join(name for folder in LIGHT for name in modules_of(folder))}", MODELS),
    ]
    assert list_loaded(*stages) == [[]] * len(stages)


def test_commands_that_read_a_run_load_no_torch(demo_runs, tmp_path):
    shutil.copytree(demo_runs["guided"].parent, tmp_path / "runs")
    runs = [str(tmp_path / "runs" / name) for name in ("base", "guided")]
    calls = [["show", runs[1]], ["analyze", *runs, "--out", str(tmp_path / "analysis")]]
    calls += [["report", str(tmp_path / "analysis"), "--out", str(tmp_path / "report.html")]]
    heavy = ("transformers", "torch", "lm_eval", "sklearn", "scipy.stats")
    dry = [["effects", runs[1], "--dry_run", "--out", str(tmp_path / "effects")]]
    stages = (CALLS.format(calls=calls), heavy), (CALLS.format(calls=dry), ("transformers", "torch"))
    assert list_loaded(*stages) == [[], []]
    assert (tmp_path / "analysis" / "planning.json").exists() and (tmp_path / "report.html").exists()


def list_loaded(*stages):
    """After each code those of its modules that are loaded, all in one process."""
    script = LISTED.format(stages=stages)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)

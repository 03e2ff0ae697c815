"""What every start, task files under any model type, and commands that read runs import leaves the heavy libraries alone."""

import ast
import shutil
import subprocess
import sys

import pytest
from helpers.pairs import ROOT
from helpers.processes import environment

MODELS = ("torch", "transformers")
LIGHT = ("answers", "tasks", "storage", "results")
READERS = (
    "commands.show.rollout",
    "lab.analyze.tables",
    "lab.frontier.folders",
    "lab.report.building",
)  # of files that stand already
HARNESS = (*MODELS, "lm_eval", "datasets", "numpy", "math_verify")
LOGS = str(ROOT / "tests" / "results" / "data" / "hf")

LISTED = """
import sys
{code}
print([name for name in {forbidden!r} if name in sys.modules])
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


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        (STARTS + CALLS.format(calls=HELP), HARNESS),
        (f"import {', '.join(name for folder in LIGHT for name in modules_of(folder))}", MODELS),
        (f"import {', '.join(f'lm_eval_takeover.{name}' for name in READERS)}", (*MODELS, "datasets", "lm_eval")),
        (CALLS.format(calls=READ), (*MODELS, "datasets", "lm_eval", "scipy.stats")),
    ],
    ids=["starts", "rooms", "readers", "reading of results"],
)
def test_imports_are_light(code, forbidden):
    assert list_loaded(code, forbidden) == []


def test_commands_that_read_a_run_load_no_torch(demo_runs, tmp_path):
    shutil.copytree(demo_runs["guided"].parent, tmp_path / "runs")
    runs = [str(tmp_path / "runs" / name) for name in ("base", "guided")]
    calls = [["show", runs[1]], ["analyze", *runs, "--out", str(tmp_path / "analysis")]]
    calls += [["report", str(tmp_path / "analysis"), "--out", str(tmp_path / "report.html")]]
    assert list_loaded(CALLS.format(calls=calls), ("transformers", "torch", "lm_eval", "sklearn", "scipy.stats")) == []
    assert (tmp_path / "analysis" / "planning.json").exists() and (tmp_path / "report.html").exists()
    dry = ["effects", runs[1], "--dry_run", "--out", str(tmp_path / "effects")]
    assert list_loaded(CALLS.format(calls=[dry]), ("transformers", "torch")) == []


def list_loaded(code, names):
    """Those of these modules that the code imports, in a process of its own."""
    script = LISTED.format(code=code, forbidden=names)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)

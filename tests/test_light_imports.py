"""What is imported at every start, or by task files under any model type, leaves the heavy libraries alone."""

import subprocess
import sys

import pytest
from helpers.pairs import ROOT
from helpers.processes import environment

MODELS = ("torch", "transformers")
LIGHT = ("answers", "tasks", "storage", "results")
READERS = ("commands.show.rollout", "lab.analyze.tables", "lab.report.building")  # of files that stand already
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
for words in {calls!r}:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(words)
"""
HELP = [["--help"], ["calibrate", "--help"]]
READ = [["leaderboard", LOGS], ["regress", LOGS, "--baseline", LOGS]]


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
        (f"import {', '.join(f'lm_eval_takeover.{name}' for name in READERS)}", (*MODELS, "datasets")),
        (CALLS.format(calls=READ), (*MODELS, "datasets", "lm_eval", "scipy.stats")),
    ],
    ids=["starts", "rooms", "readers", "reading of results"],
)
def test_imports_are_light(code, forbidden):
    script = LISTED.format(code=code, forbidden=forbidden)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr

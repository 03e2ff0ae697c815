"""What is imported at every start, or by task files under any model type, leaves the heavy libraries alone."""

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
    "lab.report.building",
)  # of files that stand already, and of names
HARNESS = (*MODELS, "lm_eval", "datasets", "numpy", "math_verify")
LOGS = str(ROOT / "tests" / "results" / "data" / "hf")

LISTED = """
import sys
{code}
print([name for name in {forbidden!r} if name in sys.modules])
"""

HELP = """
import contextlib, io
from lm_eval_takeover.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main({words!r})
"""
READ = {"leaderboard": ["leaderboard", LOGS], "regress": ["regress", LOGS, "--baseline", LOGS]}


def modules_of(folder):
    package = ROOT / "lm_eval_takeover" / folder
    names = sorted(path.stem for path in package.glob("*.py") if path.stem != "__init__")
    assert names
    return [f"lm_eval_takeover.{folder}.{name}" for name in names]


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import lm_eval_takeover; lm_eval_takeover.register_score", HARNESS),
        ("import lm_eval_takeover.lm_eval_hooks", HARNESS),
        (HELP.format(words=["--help"]), HARNESS),
        (HELP.format(words=["calibrate", "--help"]), HARNESS),
        *((f"import {', '.join(modules_of(folder))}", MODELS) for folder in LIGHT),
        *((f"import lm_eval_takeover.{name}", (*MODELS, "datasets")) for name in READERS),
        *((HELP.format(words=words), (*MODELS, "datasets", "lm_eval", "scipy.stats")) for words in READ.values()),
    ],
    ids=["package", "harness", "help", "help of a command", *LIGHT, *READERS, *READ],
)
def test_imports_are_light(code, forbidden):
    script = LISTED.format(code=code, forbidden=forbidden)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr

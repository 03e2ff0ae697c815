"""A guided run of the demo and the effects of its takeovers, for tests of several studies."""

import contextlib
import io

import pytest
from helpers.demo_runs import run_demo
from helpers.read_once import made_once

from lm_eval_takeover.cli import main


@pytest.fixture(scope="session")
def strict_run(shared_folder):
    """Twelve problems of the demo, guided by a gate that leaves some of the decisions and all synonyms to the base."""
    return made_once(shared_folder / "strict-run", lambda new: run_demo(new, 12, {"tau": 11.0, "kappa": 0.0, "batch_size": 96}))


@pytest.fixture(scope="session")
def measured(strict_run, shared_folder):
    """Takeovers and controls of that run, four continuations by the base behind each token; `printed.txt` is what was said."""

    def make(new):
        size = ["--takeovers", "20", "--controls", "10", "--continuations", "4", "--batch_size", "180"]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert main(["effects", str(strict_run), "--out", str(new), *size]) == 0
        (new / "printed.txt").write_text(said.getvalue())

    return made_once(shared_folder / "strict-effects", make)

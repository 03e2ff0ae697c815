"""`score` as a real process, killed and called again."""

import json
import signal

import pytest
from helpers.processes import HELPERS
from helpers.run_dirs import copy_few

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(demo_runs, tmp_path_factory):
    return copy_few(demo_runs["base"], tmp_path_factory.mktemp("score") / "base")


@pytest.fixture(scope="module")
def start(forked, run):
    """Starts `score` on the run, perhaps with a fault."""
    spec = {"command": ["score", str(run), "--batch_size", "2"], "log": str(run.with_name("log.txt")), "part": 300}
    return lambda **fault: forked.start(HELPERS / "attempt.py", json.dumps(spec | fault))


@pytest.fixture(scope="module")
def whole(start, run):
    """What it writes where it is left alone."""
    clear(run)
    assert start().wait() == 0 and len(read(run)) > 4
    return read(run)


def read(run):
    """What is there, but for files that a kill left unfinished, which nobody reads."""
    return {path.name: path.read_bytes() for path in run.glob("scores/[!.]*.parquet")}


def clear(run):
    for path in run.glob("scores/*.parquet"):
        path.unlink()


@pytest.mark.parametrize(
    ("fault", "number", "files"),
    [("as a part is written", 1, 0), ("as a part is written", 3, 1), ("after a part is renamed", 1, 1)],
)
def test_kills_that_are_aimed(start, run, whole, fault, number, files):
    clear(run)
    assert start(fault=fault, number=number).wait() == -signal.SIGKILL
    assert read(run).items() <= whole.items() and len(read(run)) == files
    assert start().wait() == 0 and read(run) == whole

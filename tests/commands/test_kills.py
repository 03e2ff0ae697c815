"""`score` as a real process, killed and called again."""

import json
import random
import signal
import time

import pytest
from helpers.processes import HELPERS
from helpers.run_dirs import copy_few

pytestmark = pytest.mark.slow


class Attempts:
    """One command in a folder of its own, and what it has written there."""

    def __init__(self, server, folder, words, written):
        self.server, self.folder, self.words, self.written = server, folder, words, written

    def start(self, **fault):
        spec = {"command": self.words, "log": str(self.folder / "log.txt"), "part": 300} | fault
        return self.server.start(HELPERS / "attempt.py", json.dumps(spec), cwd=self.folder)

    def run(self, **fault):
        """The exit status, negative for a signal, and what was printed, if it was not killed before."""
        status = self.start(**fault).wait()
        return status, (self.folder / "log.txt").read_text().strip()

    def read(self):
        """What is there, but for files that a kill left unfinished, which nobody reads."""
        return {path.name: path.read_bytes() for path in self.folder.glob(self.written) if path.name[0] != "."}

    def clear(self):
        for path in self.folder.glob(self.written):
            path.unlink()


@pytest.fixture(scope="module")
def attempts(forked, demo_runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("score")
    copy_few(demo_runs["base"], folder / "base")
    made = Attempts(forked, folder, ["score", "base", "--batch_size", "2"], "base/scores/*.parquet")
    made.clear()
    assert made.run()[0] == 0
    made.whole = made.read()
    assert len(made.whole) > 4
    return made


def ends_well(attempts, **fault):
    assert attempts.run(**fault)[0] == 0
    assert attempts.read() == attempts.whole


def test_kills_at_random_instants_lose_nothing(attempts):
    """Files of earlier attempts stay as they are, and the last attempt makes what one that was left alone makes."""
    chance, landed = random.Random(3), 0
    attempts.clear()
    while landed < 8:
        before = attempts.read()
        process = attempts.start()
        time.sleep(chance.uniform(0.0, 0.8))
        status = process.kill()
        assert status in (0, -signal.SIGKILL)
        landed += status != 0
        after = attempts.read()
        assert before.items() <= after.items() <= attempts.whole.items()
        if status == 0:
            assert after == attempts.whole
            attempts.clear()
    ends_well(attempts)


@pytest.mark.parametrize(
    ("fault", "number", "files"),
    [("as a part is written", 1, 0), ("as a part is written", 3, 1), ("after a part is renamed", 1, 1)],
)
def test_kills_that_are_aimed(attempts, fault, number, files):
    attempts.clear()
    assert attempts.run(fault=fault, number=number)[0] == -signal.SIGKILL
    assert attempts.read().items() <= attempts.whole.items() and len(attempts.read()) == files
    ends_well(attempts)

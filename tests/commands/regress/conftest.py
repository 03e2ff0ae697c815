"""A baseline of a good run, and runs that are compared with it."""

import json
import shutil

import pytest
from helpers.results import TASK, draw_counts, takeover, write_results

from lm_eval_takeover.cli import main


@pytest.fixture
def regress(capsys):
    """`regress` with these words: `(status, JSON)`."""

    def call(*words):
        capsys.readouterr()
        status = main(["regress", *map(str, words), "--format", "json"])
        return status, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A good run, and its baseline."""
    folder = tmp_path_factory.mktemp("baseline")
    write_results(folder / "good", {TASK: draw_counts(1)}, run=takeover())
    assert main(["regress", str(folder / "good"), "--baseline", str(folder / "b.json"), "--update"]) == 0
    return folder


@pytest.fixture
def check(tmp_path, made, regress):
    """Writes a run, and compares it with the baseline of another: `(status, JSON)`. Their folder is `check.folder`."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)

    def compare(correct, *words, **written):
        folder = write_results(tmp_path / "now", correct, **{"run": takeover(seed=1), **written})
        return regress(folder, "--baseline", tmp_path / "b.json", *words)

    compare.folder = tmp_path
    return compare

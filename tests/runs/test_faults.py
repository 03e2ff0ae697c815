"""Failure drills on the demo pair: real processes that are really killed, starved of disk, or given a broken model.

After every fault journal and traces agree, and the same call gives the same results as an uninterrupted run.
"""

import contextlib
import json
import random
import shutil
import signal
import sqlite3
import time

import pyarrow.parquet as pq
import pytest
from helpers.processes import HELPERS, mounted, wait_until
from helpers.read_once import made_once
from helpers.run_dirs import read_rows

from lm_eval_takeover.runs.journal import Journal
from lm_eval_takeover.runs.layout import list_journals
from lm_eval_takeover.runs.parquet import NAME_COLUMNS
from lm_eval_takeover.runs.run_writer import tabulate_traces

ARGUMENTS = {"spike_ratio": 0.045, "batch_size": 8, "block_size": 8}
LIMIT = 2  # problems, of 8 samples each


def start(server, folder, mounts=None, **spec):
    """An attempt at a run, in a process of its own, perhaps in the mount namespace of another one: see `attempt.py`."""
    arguments = ARGUMENTS | {"run_dir": str(folder / "run")} | spec.pop("arguments", {})
    files = {"out": str(folder / "out.json"), "log": str(folder / "log.txt")}
    folder.mkdir(exist_ok=True)
    spec = {"arguments": arguments, "limit": LIMIT} | files | spec
    return server.start(HELPERS / "attempt.py", json.dumps(spec), mounts=mounts)


@pytest.fixture(scope="module")
def undisturbed(forked, shared_folder):
    """What an uninterrupted run gives, without a run_dir."""

    def make(folder):
        assert start(forked, folder, arguments={"run_dir": None}).wait() == 0, log(folder)

    return outcome(made_once(shared_folder / "undisturbed", make))


def outcome(folder):
    """Results and samples as bytes, and what the run says of itself, without times and what only a run_dir knows."""
    found = json.loads((folder / "out.json").read_text())
    takeover = {k: v for k, v in found["takeover"].items() if k not in ("run_dir", "attempts", "seconds")}
    return json.dumps([found["results"], found["samples"], takeover], sort_keys=True).encode()


def log(folder):
    return (folder / "log.txt").read_text()


def agreement(folder):
    """Check that journal and traces hold the same samples with as many tokens; returns how many samples are journalled."""
    kept = 0
    for path in list_journals(folder / "run"):
        with contextlib.closing(Journal(path, read_only=True)) as journal:  # every row is compared with its digest
            count, traced = len(journal), list(journal.list_traces())
            assert len(traced) >= count  # more, where the run goes on meanwhile
            for file in (folder / "run" / "traces").glob("[0-9]*"):
                table = pq.read_table(file)
                names = dict.fromkeys(zip(*(table[name].to_pylist() for name in NAME_COLUMNS), strict=True))
                assert table.equals(tabulate_traces([one for one in traced if one.row[1:4] in names]))
            kept += len(traced)
    return kept


def ends_well(forked, folder, undisturbed):
    """The same call goes on to the undisturbed end."""
    kept = agreement(folder)
    assert start(forked, folder).wait() == 0, log(folder)
    assert outcome(folder) == undisturbed
    assert agreement(folder) == LIMIT * 8
    rows = read_rows(folder / "run")
    assert not rows.duplicated(["doc_id", "sample", "position"]).any()
    assert len(rows.drop_duplicates(["doc_id", "sample"])) == LIMIT * 8
    assert not list((folder / "run").rglob(".*parquet*"))
    if kept:
        assert f"{kept} of {LIMIT * 8} samples are finished already" in log(folder)
    return kept


@pytest.fixture(scope="module")
def finished(forked, undisturbed, tmp_path_factory):
    """A run that has come to its end, with a run_dir."""
    folder = tmp_path_factory.mktemp("finished")
    assert start(forked, folder).wait() == 0, log(folder)
    assert outcome(folder) == undisturbed
    return folder / "run"


def test_kills_at_random_instants(forked, undisturbed, tmp_path):
    """Each attempt finds what those before it have finished, and nothing is ever lost again."""
    chance, kept, landed = random.Random(7), 0, 0
    while landed < 5:
        process = start(forked, tmp_path)
        time.sleep(chance.uniform(0.0, 1.0) if kept < LIMIT * 8 else chance.uniform(0.0, 0.7))
        status = process.kill()
        assert status in (0, -signal.SIGKILL), log(tmp_path)
        landed += status != 0
        if list_journals(tmp_path / "run"):
            now = agreement(tmp_path)
            assert now >= kept
            kept = now
        if status == 0:  # it came through: begin a run anew, there are kills left
            assert outcome(tmp_path) == undisturbed
            shutil.rmtree(tmp_path / "run")
            kept = 0
    ends_well(forked, tmp_path, undisturbed)


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        ("in a commit", 2),
        ("as a part is written", 3),
        ("after a part is renamed", 2),
        ("an exception while scoring", 2),
        ("in the commit of verdicts", 1),
    ],
)
def test_kills_that_are_aimed(forked, undisturbed, tmp_path, fault, number):
    status = 1 if "exception" in fault else -signal.SIGKILL
    assert start(forked, tmp_path, fault=fault, number=number).wait() == status, log(tmp_path)
    kept = ends_well(forked, tmp_path, undisturbed)
    if "scoring" in fault or "verdicts" in fault:
        assert kept == LIMIT * 8  # nothing is generated again
        assert "; 0 are left to write" in log(tmp_path)


def start_slowly(forked, folder):
    """An attempt that has finished some of its samples."""

    def enough():
        with contextlib.suppress(sqlite3.Error, OSError):  # between two states
            return list_journals(folder / "run") and agreement(folder) > 2

    process = start(forked, folder, arguments={"batch_size": 2})
    wait_until(enough, process)
    return process


def test_a_folder_that_is_moved_takes_its_samples_along(forked, undisturbed, finished, tmp_path):
    """The run says so and stops; it goes on where the folder is now. What has the old name is left alone."""
    process = start_slowly(forked, tmp_path)
    (tmp_path / "run").rename(tmp_path / "moved")
    other = shutil.copytree(finished, tmp_path / "run")
    content = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    assert process.wait() == 2, log(tmp_path)
    last = log(tmp_path).strip().splitlines()[-1]
    assert last.startswith(f"error: run_dir='{tmp_path}/run' was moved or removed while a command wrote to it; ")
    assert {path: path.read_bytes() for path in other.rglob("*") if path.is_file()} == content
    shutil.rmtree(other)
    (tmp_path / "moved").rename(tmp_path / "run")
    assert ends_well(forked, tmp_path, undisturbed) > 2


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_keep_what_is_finished(forked, undisturbed, tmp_path, number, status):
    process = start_slowly(forked, tmp_path)
    process.send_signal(number)
    assert process.wait() == status
    last = log(tmp_path).strip().splitlines()[-1]
    assert last.startswith("stopped; ") and "samples are kept in run_dir=" in last
    kept = int(last.split()[1])
    assert "Traceback" not in log(tmp_path)
    assert len(read_rows(tmp_path / "run").drop_duplicates(["doc_id", "sample"])) == kept  # all traces are in parts
    assert ends_well(forked, tmp_path, undisturbed) == kept > 2


def test_a_full_disk(forked, tmp_path):
    (folder := tmp_path / "disk").mkdir()
    with mounted(f"mount -t tmpfs -o size=400k tmpfs {folder}") as pid:
        there = {"run_dir": str(folder / "run")}
        assert start(forked, tmp_path, pid, arguments=there, limit=6).wait() == 2, log(tmp_path)
        assert f"error: run_dir='{folder}/run': " in log(tmp_path)
        assert "full" in log(tmp_path) or "No space left" in log(tmp_path)
        assert "make room and give the same command again" in log(tmp_path) and "Traceback" not in log(tmp_path)
        # Room is made: by copying to a larger disk. What was committed is all there.
        shutil.copytree(f"/proc/{pid}/root{folder}/run", tmp_path / "run")
    kept = agreement(tmp_path)
    assert kept > 5
    assert start(forked, tmp_path, limit=6).wait() == 0, log(tmp_path)
    assert f"{kept} of 48 samples are finished already" in log(tmp_path)


def test_a_run_dir_that_is_read_only(forked, undisturbed, finished, tmp_path):
    """A file system that cannot be written; what it holds can be scored all the same."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    with mounted(f"mount --bind {finished} {folder} && mount -o remount,ro,bind {folder}") as pid:
        assert start(forked, tmp_path, pid, arguments={"run_dir": str(folder)}).wait() == 2
        last = log(tmp_path).strip().splitlines()[-1]
        assert last.startswith(f"error: run_dir='{folder}': opening it failed: ")
        assert "Read-only file system" in last
        done = forked.run("lm-eval-takeover", "rescore", folder, "--output_path", tmp_path / "out", mounts=pid)
    assert done.returncode == 0, done.stderr
    assert f"0 of {LIMIT * 8} verdicts changed" in done.stdout

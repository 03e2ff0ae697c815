"""One process's hold on a folder: who is sent away, what is found, attempts and their time."""

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.run_dirs import make_sample, open_run

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.storage.locks import Lock


def test_another_process_is_sent_away_and_told_who_is_there(folder):
    folder.mkdir()
    held = Lock(folder / "journal-000.lock")
    with pytest.raises(RunDirError, match=rf"is in use by process {os.getpid()} on \S+; wait, or give another"):
        open_run(folder)
    held.release()
    open_run(folder).close()


def test_a_later_model_of_the_same_process_takes_over(folder):
    first = open_run(folder)
    first.add(make_sample(1))
    second = open_run(folder)
    assert len(second.find([make_sample(1).key])) == 1
    with pytest.raises(RunDirError, match="was closed"):
        first.add(make_sample(2))
    second.close()


def test_other_ranks_samples_are_found_however_many_ranks_there_are_now(folder):
    for rank in range(3):
        run = open_run(folder, rank=rank, ranks=3)
        run.add(make_sample(rank, f"of rank {rank}"))
        run.close()
    run = open_run(folder)
    found = run.find([make_sample(rank).key for rank in range(4)])
    assert {one.text for one in found.values()} == {"of rank 0", "of rank 1", "of rank 2"}
    run.close()


def test_other_files_in_the_folder_are_left_alone(folder):
    open_run(folder).close()
    strangers = [folder / "journal-000-old.sqlite", folder / "traces" / "000-copy.parquet"]
    for path in strangers:
        path.write_bytes(b"x")
    open_run(folder).close()
    assert all(path.read_bytes() == b"x" for path in strangers)


def test_the_clock_of_a_command_runs_while_it_generates_and_its_attempts_add_up(folder):
    """Later commands of the same process, and waiting, take no time of it."""
    spent = 0.0
    for attempt in (1, 2, 3):
        started = time.monotonic()
        run = open_run(folder, "one")
        time.sleep(0.05)
        run.flush()  # here the texts are written
        spent += time.monotonic() - started
        attempts = run.read_attempts()
        assert len(attempts) == attempt and 0.05 * attempt <= sum(seconds for _, seconds in attempts) <= spent
        time.sleep(0.05)
        assert run.read_attempts() == attempts
        run.begin("two", {}, [])
        run.close()


def test_an_interrupted_attempt_counts_until_its_last_sample(folder):
    started, run = time.monotonic(), open_run(folder, "one")
    with suppress(KeyboardInterrupt), run.flushing():
        run.add(make_sample(0))
        while not run.find([make_sample(0).key]):
            time.sleep(0.01)
        kept = time.monotonic() - started
        time.sleep(2 * kept)
        raise KeyboardInterrupt
    ((_, seconds),) = run.read_attempts()
    assert 0 < seconds <= kept
    run.close()


def test_a_file_system_without_locks_is_told_from_one_that_cannot_be_written(folder, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RunDirError, match=r"opening it failed: .*; give a run_dir on a local file system$"):
        RunWriter(folder)


@pytest.mark.parametrize("place", ["/proc/takeover", "/dev/null/run"])
def test_a_folder_that_cannot_be_written_is_named(place):
    message = rf"run_dir='{place}': opening it failed: .*; make it writable, or give another run_dir$"
    with pytest.raises(RunDirError, match=message):
        RunWriter(Path(place))

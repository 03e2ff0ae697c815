"""Traces leave the journal for parts, parts agree with it, and what is damaged is moved aside."""

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers.run_dirs import kill_run, make_sample, open_run, plant, read_rows

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs import shards
from lm_eval_takeover.runs.run_reader import read_run_folder
from lm_eval_takeover.runs.traces import TraceHeader


def test_traces_go_into_parts_and_their_blobs_out_of_the_journal(folder):
    run = open_run(folder)
    run.add(make_sample(0, tokens=shards.PART_TOKENS))
    run.find([])  # behind its commit
    assert len(list((folder / "traces").iterdir())) == 1
    for number in range(1, 50):
        run.add(make_sample(number))
    run.close()
    assert len(list((folder / "traces").iterdir())) == 2
    assert len(read_rows(folder)) == shards.PART_TOKENS + 49 * 5
    with sqlite3.connect(folder / "journal-000.sqlite") as connection:
        counted = connection.execute("SELECT count(*) FROM samples WHERE trace IS NULL AND part IS NOT NULL")
        assert counted.fetchone() == (50,)
    connection.close()


def test_parts_that_no_journal_knows_are_removed(folder):
    run = open_run(folder)
    run.add(make_sample(1))
    run.close()
    (known,) = (folder / "traces").iterdir()
    unknown = known.with_name("000-000009.parquet")
    unknown.write_bytes(known.read_bytes())
    unfinished = known.with_name(".000-000010.parquet.abc")
    unfinished.write_bytes(b"half")
    open_run(folder).close()
    assert list((folder / "traces").iterdir()) == [known]


def test_parts_hold_one_run_each(folder):
    """Two settings in one folder: each with its own writers and window, whoever flushes."""
    run = open_run(folder)
    run.add(make_sample(1))
    kill_run(run)
    other = open_run(folder, "reverse")
    other.add(make_sample(2, header=TraceHeader("reverse", ("guide", "base"), None)))
    other.close()
    tables = {table["doc_id"][0].as_py(): table for table in map(pq.read_table, (folder / "traces").iterdir())}
    assert tables[1]["chosen_from"].to_pylist()[:2] == ["guide", "base"]
    assert tables[2]["chosen_from"].to_pylist()[:2] == ["base", "guide"]
    assert tables[1]["window_mean"].null_count == 1
    assert tables[2]["window_mean"].null_count == 5


def test_a_part_of_a_stranger_s_journal_lies_in_the_folder(demo_runs, tmp_path):
    """Neither a name with `..` nor a link is followed: what is elsewhere is not of this run."""
    folder = shutil.copytree(demo_runs["base"], tmp_path / "run")
    (part,) = (folder / "traces").iterdir()
    part.rename(tmp_path / "x.parquet")
    part.symlink_to(tmp_path / "x.parquet")
    with pytest.raises(RunDirError, match="lies outside"):
        list(read_run_folder(folder).read_traces(["token_id"]))
    plant(folder, "samples", part="../../x.parquet")
    with pytest.raises(RunDirError, match="the name of a part has changed"):
        read_run_folder(folder)


def test_traces_of_ranks_that_are_no_more_go_into_parts(folder):
    run = open_run(folder, rank=1, ranks=2)
    run.add(make_sample(7))
    kill_run(run)
    assert not list((folder / "traces").iterdir())
    open_run(folder).close()
    assert [path.name for path in (folder / "traces").iterdir()] == ["001-000001.parquet"]


def test_a_journal_that_is_gone_takes_no_trace_with_it(folder, caplog):
    run = open_run(folder)
    run.add(make_sample(1))
    run.close()
    (folder / "journal-000.sqlite").unlink()
    open_run(folder).close()
    assert [path.name for path in (folder / "damaged-1").iterdir()] == ["000-000001.parquet"]
    assert "1 trace files hold samples that the journal does not have" in caplog.text


@pytest.mark.parametrize("moves", range(5))
def test_moving_a_damaged_journal_aside_can_be_cut_short(folder, monkeypatch, moves):
    """Killed after any of its steps, the next start finishes it: no old log is read into the new journal, no trace is doubled."""
    run = open_run(folder)
    for number in range(30):
        run.add(make_sample(number, f"text {number} " * 60))
        run.flush()
    journal = folder / "journal-000.sqlite"
    with contextlib.closing(sqlite3.connect(journal)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    run.add(make_sample(30, "in the log"))
    run.find([])
    log = journal.with_name(f"{journal.name}-wal")
    content, logged = bytearray(journal.read_bytes()), log.read_bytes()
    kill_run(run)
    content[content.index(b"text 17 ")] ^= 1
    journal.write_bytes(content)
    log.write_bytes(logged)

    class Killed(BaseException):
        pass

    plain, left = Path.rename, [moves]

    def rename(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return plain(*arguments)

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(Path, "rename", rename)
        open_run(folder).close()
    again = open_run(folder)
    for number in range(31):
        again.add(make_sample(number, f"text {number} " * 60))
    again.close()
    assert sorted(read_rows(folder)["doc_id"]) == sorted([*range(31)] * 5)
    assert len(list(folder.glob(f"damaged-*/{journal.name}"))) == 1

"""Traces leave the journal for parts, and parts agree with it."""

import shutil
import sqlite3

import pyarrow.parquet as pq
import pytest
from helpers.run_dirs import kill_run, make_sample, open_run, plant, read_rows

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs import shards
from lm_eval_takeover.runs.run_reader import read_run_folder
from lm_eval_takeover.runs.traces import TraceHeader


def test_traces_go_into_parts_and_their_blobs_out_of_the_journal(folder, monkeypatch):
    monkeypatch.setattr(shards, "PART_TOKENS", 100)
    run = open_run(folder)
    for number in range(50):
        run.add(make_sample(number))
    run.flush()
    assert len(list((folder / "traces").iterdir())) >= 2
    run.close()
    assert len(read_rows(folder)) == 250
    with sqlite3.connect(folder / "journal-000.sqlite") as connection:
        assert connection.execute(
            "SELECT count(*) FROM samples WHERE trace IS NULL AND part IS NOT NULL"
        ).fetchone() == (50,)
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
    with pytest.raises(RunDirError, match="a trace has changed"):
        read_run_folder(folder)

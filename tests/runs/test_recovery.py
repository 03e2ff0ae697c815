"""Damaged journals, parts that no journal knows, and ranks that are no more: what is sound is used, nothing is lost twice."""

import pytest
from helpers.run_dirs import kill_run, make_sample, open_run, read_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs import recovery, shards
from lm_eval_takeover.runs.journal import Journal
from lm_eval_takeover.runs.recovery import mend_journal
from lm_eval_takeover.runs.run_writer import RunWriter


@settings(max_examples=150)
@given(data=st.data())
def test_no_flipped_byte_is_ever_used(data, tmp_path_factory):
    """Wherever a byte of the file changes, every sample that is found is one that was written."""
    folder = tmp_path_factory.mktemp("flip")
    path = folder / "journal-000.sqlite"
    journal = Journal(path)
    written = [make_sample(number, f"text {number} " * 40) for number in range(20)]
    journal.add(written)
    journal.close()
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    try:
        run = RunWriter(folder)
    except RunDirError:  # a schema number that is too high: sent away, and nothing is touched
        assert path.read_bytes() == content
        return
    found = run.find([one.key for one in written])
    assert all(found[one.key].text == one.text and found[one.key].tokens == 5 for one in written if one.key in found)
    if not (folder / "damaged-1").exists():
        assert len(found) == 20
    for one in written:  # whatever is lost is written again, and the folder is whole again
        run.add(one)
    run.close()
    assert sorted(read_rows(folder)["doc_id"]) == sorted([*range(20)] * 5)


def test_sound_rows_of_a_damaged_journal_are_used(folder, caplog):
    run = open_run(folder)
    for number in range(30):
        run.add(make_sample(number, f"text {number} " * 60))
    run.close()
    path = folder / "journal-000.sqlite"
    content = bytearray(path.read_bytes())
    content[content.index(b"text 17 ")] ^= 1
    path.write_bytes(bytes(content))
    again = open_run(folder)
    found = again.find([make_sample(number).key for number in range(30)])
    assert len(found) == 29
    assert make_sample(17).key not in found
    assert "its 29 sound samples are used" in caplog.text
    again.add(make_sample(17, "anew"))
    again.close()
    assert sorted(set(read_rows(folder)["doc_id"])) == list(range(30))


def test_traces_of_ranks_that_are_no_more_go_into_parts(folder):
    run = open_run(folder, rank=1, ranks=2)
    run.add(make_sample(7))
    kill_run(run)
    assert not list((folder / "traces").iterdir())
    open_run(folder).close()
    assert [path.name for path in (folder / "traces").iterdir()] == ["001-000001.parquet"]


@pytest.mark.parametrize("step", ["salvage", "create_journal", "extract_part", "sync_folder", "copy2"])
def test_a_salvage_that_is_cut_short_loses_nothing(folder, monkeypatch, step):
    """Killed wherever it is: the next start does it again, or to the end."""
    monkeypatch.setattr(shards, "PART_TOKENS", 40)
    run = open_run(folder)
    for number in range(30):
        run.add(make_sample(number, f"text {number} " * 60))
        run.flush()
    run.add(make_sample(30, "not in a part"))
    run._thread.submit(lambda: None).result()
    path = folder / "journal-000.sqlite"
    run.journal._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    kill_run(run)
    run.journal.close()
    content[content.index(b"text 17 ")] ^= 1
    path.write_bytes(bytes(content))

    class Killed(BaseException):
        pass

    def cut_short(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(recovery.shutil if step == "copy2" else recovery, step, cut_short)
        with pytest.raises(Killed):
            RunWriter(folder)
    again = open_run(folder)
    found = again.find([make_sample(number).key for number in range(31)])
    assert sorted(one.doc_id for one in found.values()) == [n for n in range(31) if n != 17]
    again.add(make_sample(17, "anew"))
    again.close()
    assert sorted(read_rows(folder)["doc_id"]) == sorted([*range(31)] * 5)


def test_a_journal_that_is_gone_takes_no_trace_with_it(folder, caplog):
    run = open_run(folder)
    run.add(make_sample(1))
    run.close()
    (folder / "journal-000.sqlite").unlink()
    open_run(folder).close()
    assert [path.name for path in (folder / "damaged-1").iterdir()] == ["000-000001.parquet"]
    assert "1 trace files hold samples that the journal does not have" in caplog.text


def test_a_journal_is_mended_into_one_file(folder):
    """What is put in place of a damaged journal needs no log beside it."""
    run = open_run(folder)
    for number in range(40):
        run.add(make_sample(number, "text " * 200))
    run.close()
    mended = folder / "mended"
    run = RunWriter(folder)
    assert mend_journal(folder, 0, mended) == 40
    assert not mended.with_name(mended.name + "-wal").exists()
    journal = Journal(mended)
    journal.check_rows()
    assert len(journal) == 40
    journal.close()
    run.close()

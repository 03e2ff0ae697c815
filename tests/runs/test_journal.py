"""The journal: whole rows or none, never what has changed since it was written, and never a table that is not ours."""

import sqlite3
from contextlib import closing

import pytest
from helpers.run_dirs import make_sample, open_run, read_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_takeover import __version__
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.journal import Damaged, Journal
from lm_eval_takeover.runs.run_reader import read_run_folder
from lm_eval_takeover.runs.run_writer import RunWriter


@pytest.fixture
def path(tmp_path):
    """A journal of 30 samples."""
    with closing(Journal(tmp_path / "journal-000.sqlite")) as journal:
        journal.add(make_sample(number, f"text {number} " * 60) for number in range(30))
    return journal.path


@settings(max_examples=15)
@given(texts=st.lists(st.text(), min_size=1, max_size=30))
def test_any_text_comes_back_as_it_was(texts, tmp_path_factory):
    """Quotes, NUL, SQL: a text is a value and nothing else."""
    path = tmp_path_factory.mktemp("journal") / "j.sqlite"
    samples = [make_sample(number, text) for number, text in enumerate([*texts, "'; DROP TABLE samples; --"])]
    with closing(Journal(path)) as journal:
        journal.add(samples)
    with closing(Journal(path)) as again:
        found = again.find([sample.key for sample in samples])
        assert [found[sample.key].text for sample in samples] == [sample.text for sample in samples]
        assert list(again.list_traces()) == samples


def test_a_key_that_is_there_stays_as_it_is(tmp_path):
    with closing(Journal(tmp_path / "j.sqlite")) as journal:
        journal.add([make_sample(1, "first")])
        journal.add([make_sample(1, "second"), make_sample(2, "other")])
        assert journal.find([make_sample(1).key])[make_sample(1).key].text == "first"
        assert len(journal) == 2


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    """Twenty samples, and the bytes of their journal."""
    written = [make_sample(number, f"text {number} " * 40) for number in range(20)]
    with closing(Journal(tmp_path_factory.mktemp("twenty") / "journal-000.sqlite")) as journal:
        journal.add(written)
    return written, journal.path.read_bytes()


@settings(max_examples=50)
@given(data=st.data())
def test_no_flipped_byte_is_ever_used(data, twenty, tmp_path_factory):
    """Wherever a byte of the file changes, every sample that is found is one that was written."""
    folder = tmp_path_factory.mktemp("flip")
    path = folder / "journal-000.sqlite"
    written, content = twenty[0], bytearray(twenty[1])
    flips = data.draw(st.integers(1, 3))
    for _ in range(flips):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        run = RunWriter(folder)
    except RunDirError:  # another schema number: sent away, and nothing is touched
        assert path.read_bytes() == content
        return
    found = run.find([sample.key for sample in written])
    assert all(found[s.key].text == s.text and found[s.key].tokens == 5 for s in written if s.key in found)
    if not (folder / "damaged-1").exists():
        assert len(found) >= 20 - flips  # a byte of a trace costs its sample
    for sample in written:  # whatever is lost is written again, and the folder is whole again
        run.add(sample)
    run.close()
    assert sorted(read_rows(folder)["doc_id"]) == sorted([*range(20)] * 5)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE samples ADD COLUMN bomb TEXT AS (hex(zeroblob(10000000)))",
        "CREATE VIEW v AS SELECT hex(zeroblob(10000000)) FROM samples, samples, samples",
        "CREATE TRIGGER t AFTER INSERT ON samples BEGIN DELETE FROM samples; END",
        "CREATE INDEX i ON samples (length(hex(text)))",
        "DROP TABLE verdicts",
        "PRAGMA application_id=1",
    ],
)
def test_tables_that_are_not_ours_are_refused_before_a_row_is_read(path, statement):
    """A computed column of a small file takes hundreds of MB where SQLite itself checks it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE samples SET digest = x'00'")  # which reading a row would tell
        connection.execute(statement)
    with pytest.raises(Damaged, match=r"its tables are not those of a journal|it is no journal"):
        Journal(path, read_only=True)


def test_a_journal_of_another_version_is_left_alone(folder):
    open_run(folder).close()
    with closing(sqlite3.connect(folder / "journal-000.sqlite")) as connection:
        connection.execute("PRAGMA user_version=99")
    for use in (open_run, read_run_folder):
        with pytest.raises(RunDirError, match=rf"was written by another version of .*, and this is {__version__}, which"):
            use(folder)

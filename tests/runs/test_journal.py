"""The journal: whole rows or none, and never what has changed since it was written."""

import sqlite3

import pytest
from helpers.run_dirs import make_sample, open_run
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.runs.journal import Journal
from lm_eval_takeover.runs.journal_file import Damaged


@settings(max_examples=60)
@given(texts=st.lists(st.text(), min_size=1, max_size=5))
def test_any_text_comes_back_as_it_was(texts, tmp_path_factory):
    """Quotes, NUL, SQL: a text is a value and nothing else."""
    path = tmp_path_factory.mktemp("journal") / "j.sqlite"
    journal = Journal(path)
    samples = [make_sample(number, text) for number, text in enumerate([*texts, "'; DROP TABLE samples; --"])]
    journal.add(samples)
    journal.close()
    again = Journal(path)
    again.check_rows()
    found = again.find([one.key for one in samples])
    assert [found[one.key].text for one in samples] == [one.text for one in samples]
    assert [one.trace for one in again.find_pending(10**9)] == [one.trace for one in samples]
    again.close()


def test_a_key_that_is_there_stays_as_it_is(tmp_path):
    journal = Journal(tmp_path / "j.sqlite")
    journal.add([make_sample(1, "first")])
    journal.add([make_sample(1, "second"), make_sample(2, "other")])
    assert journal.find([make_sample(1).key])[make_sample(1).key].text == "first"
    assert len(journal) == 2
    journal.close()


def test_a_file_that_is_no_journal_is_told_from_a_locked_one(tmp_path):
    path = tmp_path / "journal-000.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(Damaged, match="no journal"):
        Journal(path)
    path.write_bytes(b"")
    with pytest.raises(Damaged, match="cut off"):
        Journal(path)


def test_a_journal_of_a_newer_version_is_left_alone(folder):
    open_run(folder).close()
    with sqlite3.connect(folder / "journal-000.sqlite") as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(RunDirError, match="newer version"):
        open_run(folder)
    assert not (folder / "damaged-1").exists()

"""The journal of a run, and who writes it."""

import json
import shutil
import time
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers.run_dirs import kill_run, make_sample, open_run, query, read_rows, write_samples
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_takeover import __version__
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.results.files import Run, TaskResult
from lm_eval_takeover.results.problems import NO_PROBLEMS
from lm_eval_takeover.results.stored import add_costs
from lm_eval_takeover.runs import run_reader
from lm_eval_takeover.runs.evidence import TraceHeader
from lm_eval_takeover.runs.journal import Damaged, Journal
from lm_eval_takeover.runs.parquet import PART_TOKENS
from lm_eval_takeover.runs.run_reader import read_run_folder
from lm_eval_takeover.runs.run_writer import RunWriter


def test_a_later_model_of_the_same_process_takes_over_by_whatever_links_it_names_the_folder(folder):
    first = open_run(folder)
    first.add(make_sample(1))
    (folder.parent / "link").symlink_to(folder)
    second = open_run(folder.parent / "link")
    assert len(second.find([make_sample(1).key])) == 1
    with pytest.raises(RunDirError, match="was closed"):
        first.add(make_sample(2))
    second.close()


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
        run.add(make_sample(attempt))  # an attempt without one does not count
        run.flush()
        spent += time.monotonic() - started
        attempts = run.read_attempts()
        assert len(attempts) == attempt and 0.05 * attempt <= sum(seconds for _, seconds in attempts) <= spent
        time.sleep(0.05)
        assert run.read_attempts() == attempts
        run.begin("two", {}, [])
        run.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for place, told in (
        ("/proc/takeover", "opening it failed: .*; make it writable, or give another run_dir$"),
        (__file__, "is a file; give a folder"),
        (tmp_path / "link", "is a link to '.*/gone', which is not there; make that folder"),
    ):
        with pytest.raises(RunDirError, match=f"run_dir='{place}'.* {told}"):
            RunWriter(Path(place))


def test_the_journal_holds_all_traces_and_parts_are_copies(folder):
    run = open_run(folder)
    for number in range(50):
        run.add(make_sample(number, tokens=PART_TOKENS if number == 7 else 5))
    run.find([])  # behind its commit
    assert not list((folder / "traces").iterdir())  # they are written when it ends
    run.close()
    parts = {path.name: path.read_bytes() for path in (folder / "traces").iterdir()}
    assert len(parts) == 2
    assert len(read_rows(folder)) == PART_TOKENS + 49 * 5
    for name in parts:  # whatever is lost is written again
        (folder / "traces" / name).unlink()
        open_run(folder).close()
        assert {path.name: path.read_bytes() for path in (folder / "traces").iterdir()} == parts
    metadata = pq.read_schema(folder / "traces" / "000-000001.parquet").metadata
    assert json.loads(metadata[b"takeover"])["settings"] == {"seed": 0}


@pytest.mark.parametrize("kind", ["another run's", "changed", "unknown"])
def test_parts_that_the_journal_did_not_write_are_written_again(folder, tmp_path, caplog, kind):
    for place, text in ((folder, "ours"), (tmp_path / "other", "theirs")):
        write_samples(place, make_sample(1, text, tokens=len(text)))
    part, theirs = folder / "traces" / "000-000001.parquet", tmp_path / "other" / "traces" / "000-000001.parquet"
    ours = part.read_bytes()
    match kind:
        case "another run's":
            shutil.copy(theirs, part)
        case "changed":
            part.write_bytes(ours.replace(b"x", b"y", 1) if b"x" in ours else ours[:-9] + b"?" + ours[-8:])
        case "unknown":
            shutil.copy(part, part.with_name("000-000009.parquet"))
    part.with_name(".000-000010.parquet.abc").write_bytes(b"half")  # of a kill
    open_run(folder).close()
    assert {path.name: path.read_bytes() for path in (folder / "traces").iterdir()} == {part.name: ours}
    assert [path.name for path in folder.glob("damaged-1/*")] == ["000-000009.parquet"] * (kind == "unknown")
    assert ("trace files that are not of this run were moved to" in caplog.text) == (kind == "unknown")
    ((_, found),) = read_run_folder(folder).read_traces(["token_id"])
    assert found["token_id"].tolist() == [0, 1, 2, 3]


def test_a_trace_that_is_damaged_is_never_read_and_its_sample_alone_is_written_again(folder, caplog):
    write_samples(folder, *(make_sample(number, tokens=1000) for number in range(3)))
    (first, _), second = query(folder, "SELECT content, digest FROM evidence LIMIT 2")
    query(folder, "UPDATE evidence SET content = ?, digest = ? WHERE rowid = 1", second)
    query(folder, "UPDATE evidence SET content = ? WHERE rowid = 2", (first[:-1] + b"?",))
    reader = read_run_folder(folder)
    for sample in reader.answered[:2]:
        with pytest.raises(RunDirError, match="a trace has changed; the run's own command repairs it"):
            list(reader.read_traces(["token_id"], [sample]))
    assert len(list(reader.read_traces(["token_id"], reader.answered[2:]))) == 1
    run = open_run(folder)
    assert "the traces of 2 samples are damaged; these samples are generated again" in caplog.text
    assert list(run.find([make_sample(number).key for number in range(3)])) == [make_sample(2).key]
    for number in range(2):
        run.add(make_sample(number, tokens=1000))
    run.close()
    assert sorted(read_rows(folder)["doc_id"]) == sorted([*range(3)] * 1000)


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


def test_traces_of_ranks_that_are_no_more_go_into_parts(folder):
    run = open_run(folder, rank=1, ranks=2)
    run.add(make_sample(7))
    kill_run(run)
    assert not list((folder / "traces").iterdir())
    open_run(folder).close()
    assert [path.name for path in (folder / "traces").iterdir()] == ["001-000001.parquet"]


def test_a_journal_that_is_gone_takes_no_trace_with_it(folder, caplog):
    write_samples(folder, make_sample(1))
    (folder / "journal-000.sqlite").unlink()
    open_run(folder).close()
    assert [path.name for path in (folder / "damaged-1").iterdir()] == ["000-000001.parquet"]
    assert "journal-000.sqlite' is gone; what it left was moved to" in caplog.text


def test_a_key_that_is_there_stays_as_it_is(tmp_path):
    with closing(Journal(tmp_path / "j.sqlite")) as journal:
        journal.add([make_sample(1, "first")])
        journal.add([make_sample(1, "second"), make_sample(2, "other")])
        assert journal.find([make_sample(1).key])[make_sample(1).key].text == "first"
        assert len(journal) == 2


def test_a_reader_has_all_samples_though_the_run_goes_on_meanwhile(tmp_path):
    def write(*numbers):
        with closing(Journal(tmp_path / "j.sqlite")) as journal:
            journal.add(make_sample(number, "x" * 2000, tokens=2000) for number in range(*numbers))

    write(300)  # more than the reader's cache holds
    with closing(Journal(tmp_path / "j.sqlite", read_only=True, check=False)) as reader:
        found = reader.list_traces()
        read = [next(found)]
        write(300, 600)
        assert [sample.key for sample in [*read, *found]] == [make_sample(number).key for number in range(300)]


def test_the_costs_of_several_tasks_read_a_journal_once(folder, monkeypatch):
    open_run(folder).close()
    read, reads = run_reader.read_stored_runs, []
    monkeypatch.setattr(run_reader, "read_stored_runs", lambda path: reads.append(path) or read(path))
    tasks = {task: TaskResult.of(task, NO_PROBLEMS, {}, run_dir=str(folder), identity="another") for task in ("a", "b")}
    found = add_costs(Run(folder, "model", "guided", {}, {}, {}, tasks, None))
    assert reads == [folder] and all("holds other samples" in result.no_costs for result in found.tasks.values())


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    """Twenty samples, and the bytes of their journal."""
    written = [make_sample(number, f"'{number}\"; \0é-- " * 40) for number in range(20)]
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
def test_tables_that_are_not_ours_are_refused_before_a_row_is_read(tmp_path, statement):
    """A computed column of a small file takes hundreds of MB where SQLite itself checks it."""
    path = tmp_path / "journal-000.sqlite"
    with closing(Journal(path)) as journal:
        journal.add([make_sample(1)])
    query(tmp_path, "UPDATE samples SET digest = x'00'")  # which reading a row would tell
    query(tmp_path, statement)
    with pytest.raises(Damaged, match=r"its tables are not those of a journal|it is no journal"):
        Journal(path, read_only=True)


def test_a_journal_of_another_version_is_left_alone(folder):
    open_run(folder).close()
    query(folder, "PRAGMA user_version=8")
    query(folder, "ALTER TABLE samples DROP COLUMN text")  # nor are its tables ours
    for use in (open_run, read_run_folder):
        with pytest.raises(RunDirError, match=rf"was written by another version of .*, and this is {__version__}, which"):
            use(folder)

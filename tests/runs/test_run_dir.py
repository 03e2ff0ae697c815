"""The journal and the parts of traces: whole rows or none, and never what has changed since it was written."""

import sqlite3
import subprocess
import sys
from array import array

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from helpers.pairs import GREEDY, POLICIES, SAMPLED
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_takeover.decoding import engine
from lm_eval_takeover.errors import RunDirError
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.observations import OBSERVED
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.method.scores import entropy
from lm_eval_takeover.runs import run_dir
from lm_eval_takeover.runs.journal import Damaged, Journal, Sample
from lm_eval_takeover.runs.run_dir import RunDir
from lm_eval_takeover.runs.traces import SCHEMA, Writing, packed, part_table, window_means
from lm_eval_takeover.storage.locks import Lock, Locked

WRITING = Writing("s", ("base", "guide"), 10)


def generation(count, start=0):
    made = Generation(observed=array("f", [0.5] * (len(OBSERVED) * count)))
    made.tokens = list(range(start, start + count))
    made.taken_over = [place % 3 == 0 for place in range(count)]
    made.scores = [place / 8 for place in range(count)]
    return made


def sample(number, text="x", tokens=5, writing=WRITING):
    trace = packed(generation(tokens), writing)
    return Sample(number.to_bytes(16, "big"), "task", number, 0, text, tokens, 2, 5, 3, trace)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def opened(folder, command="s", **options):
    run = RunDir(folder, **options)
    run.begin(command, {"version": "0"}, [])
    return run


def killed(run):
    """As if its process had been killed: nothing is flushed, and the lock is let go."""
    run._thread.submit(lambda: None).result()
    run._lock.release()
    run._open = False
    run_dir._open_here.clear()


def rows(folder):
    return pd.concat([pd.read_parquet(path) for path in sorted((folder / "traces").glob("*.parquet"))])


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(), min_size=1, max_size=5))
def test_any_text_comes_back_as_it_was(texts, tmp_path_factory):
    """Quotes, NUL, SQL: a text is a value and nothing else."""
    path = tmp_path_factory.mktemp("journal") / "j.sqlite"
    journal = Journal(path)
    samples = [sample(number, text) for number, text in enumerate([*texts, "'; DROP TABLE samples; --"])]
    journal.add(samples)
    journal.close()
    again = Journal(path)
    again.check_rows()
    found = again.find([one.key for one in samples])
    assert [found[one.key].text for one in samples] == [one.text for one in samples]
    assert [one.trace for one in again.untraced(10**9)] == [one.trace for one in samples]
    again.close()


def test_a_key_that_is_there_stays_as_it_is(tmp_path):
    journal = Journal(tmp_path / "j.sqlite")
    journal.add([sample(1, "first")])
    journal.add([sample(1, "second"), sample(2, "other")])
    assert journal.find([sample(1).key])[sample(1).key].text == "first"
    assert len(journal) == 2
    journal.close()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_flipped_byte_is_ever_used(data, tmp_path_factory):
    """Wherever a byte of the file changes, every sample that is found is one that was written."""
    folder = tmp_path_factory.mktemp("flip")
    path = folder / "journal-000.sqlite"
    journal = Journal(path)
    written = [sample(number, f"text {number} " * 40) for number in range(20)]
    journal.add(written)
    journal.close()
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    try:
        run = RunDir(folder)
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
    assert sorted(rows(folder)["doc_id"]) == sorted([*range(20)] * 5)


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
    opened(folder).close()
    with sqlite3.connect(folder / "journal-000.sqlite") as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(RunDirError, match="newer version"):
        opened(folder)
    assert not (folder / "damaged-1").exists()


def test_sound_rows_of_a_damaged_journal_are_used(folder, caplog):
    run = opened(folder)
    for number in range(30):
        run.add(sample(number, f"text {number} " * 60))
    run.close()
    path = folder / "journal-000.sqlite"
    content = bytearray(path.read_bytes())
    content[content.index(b"text 17 ")] ^= 1
    path.write_bytes(bytes(content))
    again = opened(folder)
    found = again.find([sample(number).key for number in range(30)])
    assert len(found) == 29
    assert sample(17).key not in found
    assert "its 29 sound samples are used" in caplog.text
    again.add(sample(17, "anew"))
    again.close()
    assert sorted(set(rows(folder)["doc_id"])) == list(range(30))


def test_traces_go_into_parts_and_their_blobs_out_of_the_journal(folder, monkeypatch):
    monkeypatch.setattr(run_dir, "PART", 100)
    run = opened(folder)
    for number in range(50):
        run.add(sample(number))
    run.flush()
    parts = list((folder / "traces").iterdir())
    assert len(parts) >= 2
    run.close()
    assert len(rows(folder)) == 250
    with sqlite3.connect(folder / "journal-000.sqlite") as connection:
        assert connection.execute(
            "SELECT count(*) FROM samples WHERE trace IS NULL AND part IS NOT NULL"
        ).fetchone() == (50,)
    connection.close()


def test_parts_that_no_journal_knows_are_removed(folder):
    run = opened(folder)
    run.add(sample(1))
    run.close()
    (known,) = (folder / "traces").iterdir()
    unknown = known.with_name("000-000009.parquet")
    unknown.write_bytes(known.read_bytes())
    unfinished = known.with_name(".000-000010.parquet.abc")
    unfinished.write_bytes(b"half")
    opened(folder).close()
    assert list((folder / "traces").iterdir()) == [known]


def test_parts_hold_one_run_each(folder):
    """Two settings in one folder: each with its own writers and window, whoever flushes."""
    run = opened(folder)
    run.add(sample(1))
    killed(run)
    other = opened(folder, "reverse")
    other.add(sample(2, writing=Writing("reverse", ("guide", "base"), None)))
    other.close()
    tables = {table["doc_id"][0].as_py(): table for table in map(pq.read_table, (folder / "traces").iterdir())}
    assert tables[1]["chosen_from"].to_pylist()[:2] == ["guide", "base"]
    assert tables[2]["chosen_from"].to_pylist()[:2] == ["base", "guide"]
    assert tables[1]["window_mean"].null_count == 1
    assert tables[2]["window_mean"].null_count == 5


def test_another_process_is_sent_away_and_told_who_is_there(folder):
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from lm_eval_takeover.storage.locks import Lock\n"
        "lock = Lock(Path(sys.argv[1]))\n"
        "print('locked', flush=True)\n"
        "time.sleep(600)\n"
    )
    folder.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(folder / "journal-000.lock")], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(RunDirError, match=rf"is in use by process {holder.pid} on \S+; wait for it to end"):
        opened(folder)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    opened(folder).close()


def test_a_later_model_of_the_same_process_takes_over(folder):
    first = opened(folder)
    first.add(sample(1))
    second = opened(folder)
    assert len(second.find([sample(1).key])) == 1
    with pytest.raises(RunDirError, match="was closed"):
        first.add(sample(2))
    second.close()


def test_a_lock_is_let_go(tmp_path):
    lock = Lock(tmp_path / "lock")
    with pytest.raises(Locked, match="process"):
        Lock(tmp_path / "lock")
    lock.release()
    Lock(tmp_path / "lock").release()


def test_other_ranks_samples_are_found_however_many_ranks_there_are_now(folder):
    for rank in range(3):
        run = opened(folder, rank=rank, ranks=3)
        run.add(sample(rank, f"of rank {rank}"))
        run.close()
    run = opened(folder)
    found = run.find([sample(rank).key for rank in range(4)])
    assert {one.text for one in found.values()} == {"of rank 0", "of rank 1", "of rank 2"}
    run.close()


def test_traces_of_ranks_that_are_no_more_go_into_parts(folder):
    run = opened(folder, rank=1, ranks=2)
    run.add(sample(7))
    killed(run)
    assert not list((folder / "traces").iterdir())
    opened(folder).close()
    assert [path.name for path in (folder / "traces").iterdir()] == ["001-000001.parquet"]


@pytest.mark.parametrize("step", ["salvage", "create", "cut_part", "sync_folder", "copy2"])
def test_a_salvage_that_is_cut_short_loses_nothing(folder, monkeypatch, step):
    """Killed wherever it is: the next start does it again, or to the end."""
    monkeypatch.setattr(run_dir, "PART", 40)
    run = opened(folder)
    for number in range(30):
        run.add(sample(number, f"text {number} " * 60))
        run.flush()
    run.add(sample(30, "not in a part"))
    run._thread.submit(lambda: None).result()
    path = folder / "journal-000.sqlite"
    run.journal._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    killed(run)
    run.journal.close()
    content[content.index(b"text 17 ")] ^= 1
    path.write_bytes(bytes(content))

    class Killed(BaseException):
        pass

    def cut_short(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(run_dir.shutil if step == "copy2" else run_dir, step, cut_short)
        with pytest.raises(Killed):
            RunDir(folder)
    again = opened(folder)
    found = again.find([sample(number).key for number in range(31)])
    assert sorted(one.doc_id for one in found.values()) == [n for n in range(31) if n != 17]
    again.add(sample(17, "anew"))
    again.close()
    assert sorted(rows(folder)["doc_id"]) == sorted([*range(31)] * 5)


def test_a_journal_that_is_gone_takes_no_trace_with_it(folder, caplog):
    run = opened(folder)
    run.add(sample(1))
    run.close()
    (folder / "journal-000.sqlite").unlink()
    opened(folder).close()
    assert [path.name for path in (folder / "damaged-1").iterdir()] == ["000-000001.parquet"]
    assert "1 trace files hold samples that the journal does not have" in caplog.text


def test_other_files_in_the_folder_are_left_alone(folder):
    opened(folder).close()
    strangers = [folder / "journal-000-old.sqlite", folder / "traces" / "000-copy.parquet"]
    for path in strangers:
        path.write_bytes(b"x")
    opened(folder).close()
    assert all(path.read_bytes() == b"x" for path in strangers)


def test_commands_are_told_apart(folder):
    """Two in one process: each with its own attempts and time."""
    run = opened(folder, "one")
    run.begin("two", {}, [])
    assert run.attempts_and_seconds()[0] == 1
    run.close()
    again = opened(folder, "one")
    assert again.attempts_and_seconds()[0] == 2
    again.close()


def test_time_of_all_attempts_adds_up(folder):
    for expected in (1, 2, 3):
        run = opened(folder)
        attempts, seconds = run.attempts_and_seconds()
        assert attempts == expected
        assert 0 <= seconds < 60
        run.close()


def test_window_means_are_those_of_the_gate():
    scores = np.random.default_rng(0).exponential(size=50).astype(np.float32)
    for window in (1, 3, 10, 70):
        found = window_means(scores, window)
        assert np.isnan(found[0])
        for t in range(1, 50):
            assert found[t] == pytest.approx(scores[max(0, t - window) : t].astype(float).mean(), rel=1e-6)


def test_an_infinite_score_counts_in_its_windows_only():
    scores = np.array([1.0, np.inf, 2.0, 3.0, 4.0], np.float32)
    np.testing.assert_array_equal(window_means(scores, 2), np.array([np.nan, 1.0, np.inf, np.inf, 2.5], np.float32))


def test_traces_are_read_by_pandas_polars_and_duckdb(folder):
    run = opened(folder)
    for number in range(3):
        run.add(sample(number))
    run.close()
    (path,) = (folder / "traces").iterdir()
    by_pandas = pd.read_parquet(path)
    by_polars = pl.read_parquet(path)
    by_duckdb = duckdb.sql(f"SELECT * FROM '{path}'").fetchall()
    assert len(by_pandas) == len(by_polars) == len(by_duckdb) == 15
    assert by_pandas["token_id"].tolist() == by_polars["token_id"].to_list() == [row[4] for row in by_duckdb]
    assert by_pandas["chosen_from"].tolist() == by_polars["chosen_from"].to_list() == [row[5] for row in by_duckdb]
    assert list(by_pandas) == by_polars.columns == SCHEMA.names


@pytest.mark.parametrize("block_size", [1, 7, "auto"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("name", POLICIES)
def test_observations_are_those_of_full_passes(demo_pair, prompts, name, direction, block_size):
    """Beside a plain pass of each model over the whole text: what the policy asked is there and right, the rest is null."""
    from dataclasses import replace

    policy = replace(POLICIES[name], direction=direction)
    requests = [Request(prompt, 1, 14, SAMPLED, label="r") for prompt in prompts[:3]]
    made = dict(engine.generate(demo_pair, policy, requests, batch_size=2, block_size=block_size, traced=True))
    plain = dict(engine.generate(demo_pair, policy, requests, batch_size=2, block_size=block_size))
    for i, request in enumerate(requests):
        assert made[i].tokens == plain[i].tokens
        assert plain[i].observed is None
        seen = np.frombuffer(made[i].observed, np.float32).reshape(-1, len(OBSERVED))
        tokens = made[i].tokens
        assert len(seen) == len(tokens)
        logits = {}
        for member in demo_pair.members:
            ids = torch.tensor([[*request.prompt, *tokens]])
            with torch.inference_mode():
                full = member.model(input_ids=ids).logits[0, len(request.prompt) - 1 : -1, : demo_pair.vocabulary.size]
            logits[member.role] = full.float()
        host, donor = policy.host, policy.donor
        places = torch.arange(len(tokens))
        expected = {"base_entropy": entropy(logits["base"])}
        for column, role in (("host_logprob", host), ("donor_logprob", donor)):
            if role:
                expected[column] = logits[role].log_softmax(-1)[places, tokens]
        if host:
            chosen = logits[host][places, tokens][:, None]
            expected["donor_rank"] = (logits[host] > chosen).sum(-1) + 1
        both = name in ("disagreement", "rkl", "js") or (block_size == 1 and host and donor)
        for place, column in enumerate(OBSERVED):
            there = ~np.isnan(seen[:, place])
            if both:
                assert there.all(), column
            if column not in expected:
                assert not there.any(), column
            else:
                np.testing.assert_allclose(seen[there, place], expected[column].numpy()[there], rtol=1e-3, atol=2e-4)
        if policy.writes(False) == "base" and name == "entropy":
            assert not np.isnan(seen[:, 0]).any()


def test_a_part_holds_what_was_generated(demo_pair, prompts, folder):
    requests = [Request(prompt, 0, 20, GREEDY, label="r") for prompt in prompts]
    policy = POLICIES["disagreement"]
    made = dict(engine.generate(demo_pair, policy, requests, batch_size=4, traced=True))
    samples = [
        Sample(bytes([i]) * 16, 'it\'s a "task"/../x', i, 0, "", len(g.tokens), g.takeovers, 0, 0, packed(g, WRITING))
        for i, g in made.items()
    ]
    table = part_table(samples).to_pandas()
    for i, g in made.items():
        mine = table[table["doc_id"] == i]
        assert mine["token_id"].tolist() == g.tokens
        assert (mine["chosen_from"] == "guide").tolist() == g.taken_over
        assert mine["score"].tolist() == pytest.approx(g.scores, rel=1e-6)
        assert mine["position"].tolist() == list(range(len(g.tokens)))
    assert set(table["task"]) == {'it\'s a "task"/../x'}


def test_a_journal_is_mended_into_one_file(folder):
    """What is put in place of a damaged journal needs no log beside it."""
    run = opened(folder)
    for number in range(40):
        run.add(sample(number, "text " * 200))
    run.close()
    path = folder / "journal-000.sqlite"
    mended = folder / "mended"
    run = RunDir(folder)
    assert run._mend(path, mended, 0) == 40
    assert not mended.with_name(mended.name + "-wal").exists()
    journal = Journal(mended)
    journal.check_rows()
    assert len(journal) == 40
    journal.close()
    run.close()

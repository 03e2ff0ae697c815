"""Samples with traces, and run_dirs that they go into."""

import json
import shutil
import sqlite3
from array import array
from contextlib import closing

import pandas as pd

from lm_eval_takeover.method.request import OBSERVED, Generation
from lm_eval_takeover.runs import journal
from lm_eval_takeover.runs.evidence import TraceHeader, pack_trace
from lm_eval_takeover.runs.journal import AskedSample, Sample
from lm_eval_takeover.runs.run_writer import RunWriter

HEADER = TraceHeader("s", ("base", "guide"), 10)


def make_sample(number, text="x", tokens=5, header=HEADER):
    generation = Generation(observed=array("f", [0.5] * (len(OBSERVED) * tokens)))
    generation.tokens = list(range(tokens))
    generation.taken_over = [place % 3 == 0 for place in range(tokens)]
    generation.scores = [place / 8 for place in range(tokens)]
    trace = pack_trace(generation, header)
    return Sample(number.to_bytes(16, "big"), "task", number, 0, text, tokens, 2, 1, 4, 5, 3, False, trace=trace)


def open_run(folder, command="s", **options):
    run = RunWriter(folder, **options)
    task = [AskedSample("task", "doc", number, 0, number, "prompt", make_sample(number).key) for number in range(3)]
    run.begin(command, {"version": "0", "settings": {"seed": 0}}, task)
    return run


def write_samples(folder, *samples):
    run = open_run(folder)
    run.add(*samples)
    run.close()


def kill_run(run):
    """Leave its folder as it is on disk now, as if its process had been killed: nothing is flushed, and nobody holds the lock."""
    run.find([])  # behind the commits of what was added
    left = shutil.copytree(run.folder, run.folder.with_name("left"))
    run.close()
    shutil.rmtree(run.folder)
    left.rename(run.folder)


def query(folder, statement, values=()):
    """What the first journal answers to this SQL, which may change it."""
    with closing(sqlite3.connect(folder / "journal-000.sqlite")) as connection, connection:
        return connection.execute(statement, values).fetchall()


def plant(folder, table, where="true", **values):
    """Change a journal as a stranger can who knows its digests: these columns of every row."""
    with closing(sqlite3.connect(folder / "journal-000.sqlite")) as connection, connection:
        names = journal.COLUMNS[table]
        connection.row_factory = sqlite3.Row
        for row in connection.execute(f"SELECT rowid AS number, * FROM {table} WHERE {where}").fetchall():
            new = dict(row) | {name: value(row[name]) if callable(value) else value for name, value in values.items()}
            new["digest"] = journal.row_digest([new[name] for name in names])
            rowid = new.pop("number")
            marks = ", ".join(f"{name} = ?" for name in new)
            connection.execute(f"UPDATE {table} SET {marks} WHERE rowid = ?", [*new.values(), rowid])


def plant_facts(folder, **parts):
    """The same of what each attempt says of itself: values in its `arguments` and its `takeover`."""

    def change(text):
        facts = json.loads(text)
        return json.dumps(facts | {part: facts[part] | values for part, values in parts.items()})

    plant(folder, "attempts", facts=change)


def copy_few(run, folder, problems=2):
    """A copy of a run that was asked its first problems only."""
    shutil.copytree(run, folder)
    for rows in (f"asked WHERE doc_id >= {problems}", f"samples WHERE doc_id >= {problems}", "evidence WHERE kind = 'score'"):
        query(folder, f"DELETE FROM {rows}")
    return folder


def read_rows(folder):
    return pd.read_parquet(folder / "traces")

"""A file of a stranger is read, or refused in a line by an error of ours, whatever was changed in it."""

import collections
import random
import shutil

import pyarrow as pa
import pytest
from helpers.foreign_files import KINDS, SCORES, make_runs, make_sound, try_mix, try_one

from lm_eval_takeover.errors import RunDirError, TakeoverError
from lm_eval_takeover.lab.score_files import list_score_files, read_scored_samples
from lm_eval_takeover.runs import parquet


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A sound file of each kind, which is read."""
    folder = tmp_path_factory.mktemp("foreign") / "sound"
    make_sound(folder)
    for kind, (_, read) in KINDS.items():
        read(shutil.copytree(folder, folder.with_name(kind)))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_read_or_refused_in_a_line(kind, sound):
    said = []
    for seed in range(8):
        try:
            try_one(kind, sound, sound.with_name("changed"), seed)
        except TakeoverError as error:
            said.append(str(error))
    assert all(len(text.splitlines()) == 1 for text in said), said


def read_all(path):
    samples = read_scored_samples([path], SCORES)
    return [(one.name, {name: of.tolist() for name, of in one.columns.items()}) for one in samples]


def test_a_flipped_bit_is_never_read_as_data(sound):
    """Of a journal: tests/runs/test_run_writer.py."""
    (path, *_), rng, refused = list_score_files(sound.with_name("scores") / "base"), random.Random(0), 0
    content, expected = path.read_bytes(), read_all(path)
    for _ in range(60):
        changed = bytearray(content)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        try:
            assert read_all(path) == expected
        except RunDirError:
            refused += 1
    assert refused > 50


def test_files_of_two_runs_are_never_read_as_one(tmp_path):
    truth = make_runs(tmp_path / "sound")
    outcomes = collections.Counter(try_mix(tmp_path / "sound", truth, tmp_path / "mixed", seed) for seed in range(40))
    assert outcomes.keys() == {"read", "refused"}


def test_parquet_that_expands_is_refused_before_it_is_read(tmp_path):
    """Eight million equal numbers in some KB."""
    path = tmp_path / "000-000001.parquet"
    count = parquet.MOST_ROWS + 1
    column = pa.array([7], pa.int32()).take(pa.nulls(count, pa.int32()).fill_null(0))
    parquet.write_parquet(path, pa.table({"token_id": column}))
    assert path.stat().st_size < 2**20
    message = r"would take .* MB for 8,388,609 rows, and at most"
    with pytest.raises(RunDirError, match=message), parquet.reading(path, "x"):
        parquet.read_table(path, parquet.TRACE_SCHEMA, ["token_id"])

"""Parts of scores files: every sample once, however row groups cut it, and the same tables from one process and from several."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.analysis import measuring
from lm_eval_takeover.analysis.measuring import Measuring, measure_parts
from lm_eval_takeover.analysis.tokens import list_parts, read_scored_samples
from lm_eval_takeover.errors import RunDirError


def write(path, lengths, group):
    """Samples of these lengths, in row groups of so many rows."""
    names = [("a" if n < 2 else "b", n, n % 2) for n, length in enumerate(lengths) for _ in range(length)]
    task, doc_id, sample = (list(column) for column in zip(*names, strict=True))
    rng = np.random.default_rng(len(names))
    floats = {name: pa.array(rng.exponential(size=len(names)), pa.float32()) for name in ("ce", "base_entropy")}
    columns = {"task": task, "doc_id": doc_id, "sample": sample, "token_id": list(range(len(names)))} | floats
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_a_sample_belongs_to_the_part_in_which_it_begins(tmp_path_factory, lengths, group):
    path = write(tmp_path_factory.getbasetemp() / "cut.parquet", lengths, group)
    parts = list_parts([path])
    assert sum(part.rows for part in parts) == sum(lengths)
    found = [one for part in parts for one in read_scored_samples([part], ["ce"])]
    assert [one.name[1] for one in found] == list(range(len(lengths)))
    assert [one.columns["token_id"].tolist() for one in found] == [
        list(range(sum(lengths[:n]), sum(lengths[: n + 1]))) for n in range(len(lengths))
    ]


def test_several_processes_measure_what_one_does(tmp_path, monkeypatch):
    paths = [write(tmp_path / f"{n}.parquet", [40, 30, 50], 25) for n in range(2)]
    places = {name: [name] for name in [("a", 0, 0), ("a", 1, 1), ("b", 2, 0)]}
    todo = Measuring(["concentration", "overlap"], ["ce", "entropy"], places)
    parts = list_parts(paths)
    alone = list(measure_parts(todo, parts))
    assert len(alone) == len(parts) == 10
    monkeypatch.setattr(measuring, "_ROWS", 1)
    monkeypatch.setattr(measuring, "count_cores", lambda: 2)
    together = list(measure_parts(todo, parts))
    for one, other in zip(alone, together, strict=True):
        assert one.keys() == other.keys()
        assert all(one[name].equals(other[name]) for name in one)


def test_a_file_that_is_none_is_named(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    with pytest.raises(RunDirError, match=r"x\.parquet' cannot be read as scores"):
        list_parts([tmp_path / "x.parquet"])

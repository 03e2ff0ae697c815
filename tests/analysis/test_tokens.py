"""Samples of scores files: each once, however row groups and tables cut it."""

import pyarrow as pa
import pytest
from helpers.analyses import write_scores
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.analysis.tokens import list_parts, read_scored_samples, split_tables
from lm_eval_takeover.errors import RunDirError


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_a_sample_belongs_to_the_part_in_which_it_begins(tmp_path_factory, lengths, group):
    path = write_scores(tmp_path_factory.getbasetemp() / "cut.parquet", lengths, group)
    parts = list_parts([path])
    assert sum(part.rows for part in parts) == sum(lengths)
    found = [one for part in parts for one in read_scored_samples([part], ["ce"])]
    assert [one.name[1] for one in found] == list(range(len(lengths)))
    expected = [list(range(sum(lengths[:n]), sum(lengths[: n + 1]))) for n in range(len(lengths))]
    assert [one.columns["token_id"].tolist() for one in found] == expected


def test_a_file_that_is_none_is_named(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    with pytest.raises(RunDirError, match=r"x\.parquet' cannot be read as scores"):
        list_parts([tmp_path / "x.parquet"])


def test_samples_that_go_on_in_the_next_table_are_put_together():
    rows = [("b" if n > 6 else "a", n // 3, 0, x) for n in range(9) for x in range(n + 1)]
    columns = zip(*rows, strict=True)
    whole = pa.table(dict(zip(("task", "doc_id", "sample", "token_id"), map(list, columns), strict=True)))
    expected = [(one.name, one.columns["token_id"].tolist()) for one in split_tables([whole], ["token_id"])]
    assert [name for name, _ in expected] == [("a", 0, 0), ("a", 1, 0), ("a", 2, 0), ("b", 2, 0)]
    for size in (1, 4, 100):
        pieces = [whole.slice(start, size) for start in range(0, len(whole), size)]
        assert [(one.name, one.columns["token_id"].tolist()) for one in split_tables(pieces, ["token_id"])] == expected

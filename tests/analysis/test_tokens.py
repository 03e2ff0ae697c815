"""Samples of scores files: each once, however row groups and tables cut it."""

import pytest
from helpers.analyses import write_scores
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.analysis.tokens import list_parts, read_scored_samples
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

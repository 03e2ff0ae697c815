"""Samples of scores files."""

from helpers.analyses import write_scores
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.lab.analysis.tokens import read_scored_samples


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_the_samples_of_a_file_are_told_apart(tmp_path_factory, lengths):
    found = list(read_scored_samples([write_scores(tmp_path_factory.getbasetemp() / "cut.parquet", lengths)], ["ce"]))
    assert [one.name[1] for one in found] == list(range(len(lengths)))
    expected = [list(range(sum(lengths[:n]), sum(lengths[: n + 1]))) for n in range(len(lengths))]
    assert [one.columns["token_id"].tolist() for one in found] == expected

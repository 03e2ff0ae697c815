"""What the tokens of takeovers are, counted by hand."""

import numpy as np
import polars as pl

from lm_eval_takeover.lab.analysis.catalogue import COLUMNS
from lm_eval_takeover.lab.analysis.pooling import make_frame
from lm_eval_takeover.lab.analysis.takeovers import measure_cross, measure_ranks, tabulate_cross, tabulate_ranks
from lm_eval_takeover.lab.analysis.tokens import SampleTokens


def test_ranks_and_near_positions_by_hand():
    columns = {
        "token_id": np.array([5, 6, 7, 8, 9, 10]), "takeover": np.array([1, 1, 1, 1, 0, 1], bool),
        "host_token_id": np.array([5, 1, -1, 2, 9, 3]), "donor_rank": np.array([1, 3, 2, 10, 1, 101]),
        "score": np.array([0.0, 0.1, 0.2, 0.05, 0.6, 0.6], np.float32),
    }  # fmt: skip
    one = SampleTokens(("t", 0, 0), columns)
    ranks = tabulate_ranks(make_frame([{"task": "t", "run": "r", "doc_id": 0, **measure_ranks(one)}] * 2))
    assert dict(ranks.select("rank", "takeovers").iter_rows()) == {
        "1": 0, "2": 0, "3": 2, "4-10": 2, "11-100": 0, ">100": 2,
    }  # fmt: skip
    measured = make_frame([{"task": "t", "run": "r", "direction": "forward", **measure_cross(one, 0.15)}])
    acc = pl.DataFrame({"task": "t", "run": "r", "acc": 0.5, "acc_host": 0.25, "acc_donor": [None]})
    (row,) = tabulate_cross(measured, acc, 0.15).to_dicts()
    assert list(row) == list(COLUMNS["cross"])
    assert (row["changed"], row["changed_share"]) == (3, 0.5)  # one drew the host's own token, of one it is not known
    assert (row["near_share"], row["replaced"], row["replaced_share"], row["threshold"]) == (0.5, 5, 5 / 6, 0.15)

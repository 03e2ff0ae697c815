"""Near-zero shares, the guide's first choices and entropies by js, on planted rollouts whose answer is known."""

import numpy as np
import polars as pl
import pytest
import torch
from helpers.analyses import analyse

from lm_eval_takeover.lab.analysis.catalogue import COLUMNS
from lm_eval_takeover.lab.analysis.choices import EDGES, MEASURES
from lm_eval_takeover.lab.analysis.tokens import SampleTokens
from lm_eval_takeover.method.observations import COMPARED, compare
from lm_eval_takeover.method.reading import PairReading

TASKS = ("takeover_gsm8k", "takeover_amc23")


@pytest.fixture(scope="module")
def planted():
    """Rollouts of 200 tokens: 2 forks, the likeliest by js, where the guide wants the base's third token, and else agrees."""
    rng, samples = np.random.default_rng(0), []
    for task, doc, number in ((t, d, n) for t in TASKS for d in range(12) for n in range(4)):
        js, rank = rng.uniform(0, 0.0008, 200).astype(np.float32), np.ones(200, np.int32)
        forks, some = rng.choice(200, 2, replace=False), rng.choice(200, 20, replace=False)
        js[some], js[forks] = 0.05, 0.55
        rank[forks] = 3
        columns = {"token_id": np.zeros(200, int), "js": js, "guide_top_rank": rank}
        columns |= {"shared_top5": np.where(rank == 1, 5, 2), "shared_top10": np.where(rank == 1, 10, 3)}
        columns |= {"base_entropy": np.where(js > 0.5, 2.0, 0.25), "guide_entropy": np.where(js > 0.5, 1.0, 0.125)}
        samples.append(SampleTokens((task, doc, number), columns))
    return samples


def test_near_zero_shares_are_those_that_were_planted(planted):
    table = analyse("near", planted, ["js"])
    assert tuple(table.columns) == COLUMNS["near"]
    shares = {(row["task"], row["threshold"]): row for row in table.to_dicts()}
    for task in (*TASKS, "mean"):
        overlap = 1 - shares[task, 0.1]["share"]
        assert overlap == pytest.approx(2 / 200)
        assert 0.885 < shares[task, 0.001]["share"] == shares[task, 0.01]["share"] < 0.9
        assert shares[task, 0.01]["low"] < shares[task, 0.01]["share"] < shares[task, 0.01]["high"]
    assert shares["mean", 0.1]["tokens"] == 2 * shares[TASKS[0], 0.1]["tokens"] == 2 * 12 * 4 * 200


def test_the_guides_first_choice_is_found_where_it_was_planted(planted):
    table = analyse("choices", planted, ["js"])
    assert tuple(table.columns) == COLUMNS["choices"]
    found = {(row["set"], row["measure"]): row for row in table.filter(pl.col("task") == "mean").to_dicts()}
    assert [found["all", name]["value"] for name in MEASURES] == pytest.approx([0.99, 1, 1, 0.994, 0.993])
    assert [found["peaks", name]["value"] for name in MEASURES] == pytest.approx([0, 1, 1, 0.4, 0.3])
    assert (found["all", "rank_1"]["tokens"], found["peaks", "rank_1"]["tokens"]) == (96 * 200, 96 * 2)
    assert found["peaks", "top_5"]["low"] is found["peaks", "top_5"]["high"] is None  # all resamples agree


def test_entropies_stand_in_the_bin_of_their_js(planted):
    table = analyse("entropy_by_js", planted, ["js", "entropy"][:1])
    assert tuple(table.columns) == COLUMNS["entropy_by_js"]
    rows = [row for row in table.to_dicts() if row["task"] == "mean"]
    assert len(rows) == len(EDGES) - 1 and rows[-1]["right"] == pytest.approx(np.log(2))
    filled = {row["left"]: (row["base_entropy"], row["guide_entropy"]) for row in rows if row["tokens"]}
    assert filled == {0: (0.25, 0.125), 0.03: (0.25, 0.125), 0.5: (2, 1)}
    assert sum(row["tokens"] for row in rows) == 96 * 200
    empty = next(row for row in rows if not row["tokens"])
    assert (empty["base_entropy"], empty["base_entropy_low"]) == (None, None)


def test_ranks_and_shared_tokens_are_those_of_sorted_logits():
    generator = torch.Generator().manual_seed(0)
    base, guide = (torch.randn(7, 40, generator=generator) for _ in range(2))
    found = dict(zip(COMPARED, compare(PairReading(base, guide, torch.zeros(7, dtype=torch.long))).unbind(-1), strict=True))
    for row in range(7):
        ours, theirs = (logits[row].argsort(descending=True).tolist() for logits in (base, guide))
        assert found["guide_top_rank"][row] == ours.index(theirs[0]) + 1
        for size in (5, 10):
            assert found[f"shared_top{size}"][row] == len(set(ours[:size]) & set(theirs[:size]))

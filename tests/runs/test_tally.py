"""What its token limit cut off, and what its scores were: known to a run, to one that goes on from a run_dir, and to rescore."""

import pandas as pd
import pytest
from lm_eval.api.instance import Instance

from lm_eval_takeover.demo import problems
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.runs.run_reader import read_stored_runs


def answer(limit, prompts=1, **arguments):
    """`(responses, config.takeover)` of greedy texts of at most so many tokens."""
    settings = {"until": [], "do_sample": False, "max_gen_toks": limit}
    lm = GuidedTakeover(**{"policy": "base", "batch_size": 4} | arguments)
    asked = [
        Instance("generate_until", doc, (f"Problem: {doc['problem']}\nSolution:", settings), 0, metadata=("demo", i, 1))
        for i, doc in enumerate(problems()[:prompts])
    ]
    found = lm.generate_until(asked, disable_tqdm=True)
    info = lm.get_model_info()["takeover"]
    lm.close()
    return found, info


@pytest.fixture(scope="module")
def whole():
    """A text that ends by itself, and how many tokens it has, its end token included."""
    (text,), info = answer(320)
    assert (text.truncated, info["truncated"]) == (False, 0.0)
    return text, info["tokens"]


def test_an_end_token_at_the_very_limit_is_no_cut(whole):
    text, tokens = whole
    (same,), info = answer(tokens)
    assert (same, same.truncated, info["truncated"]) == (text, False, 0.0)
    (shorter,), info = answer(tokens - 1)
    assert (shorter, shorter.truncated, info["truncated"]) == (text, True, 1.0)  # all of it but the end token


def test_the_share_is_reported_per_task_and_kept_in_a_run_dir(whole, tmp_path):
    limit = whole[1]
    texts, first = answer(limit, prompts=6, run_dir=str(tmp_path))
    cut = [text.truncated for text in texts]
    assert 0 < sum(cut) < 6
    assert first["truncated"] == first["per_task"]["demo"]["truncated"] == sum(cut) / 6
    assert first["samples"] == 6
    again, second = answer(limit, prompts=6, run_dir=str(tmp_path))
    assert ([text.truncated for text in again], second["per_task"]) == (cut, first["per_task"])
    (run,), _ = read_stored_runs(tmp_path)
    assert sorted(sample.response.truncated for sample in run.samples.values()) == sorted(cut)


def test_the_mean_score_and_the_share_of_spikes_are_those_of_the_traces(whole, tmp_path):
    gate = {"policy": "disagreement", "tau": 0.05, "kappa": 30, "run_dir": str(tmp_path)}
    texts, info = answer(whole[1], prompts=6, **gate)
    traces = pd.read_parquet(tmp_path / "traces")
    cut = traces.doc_id.map([text.truncated for text in texts].__getitem__)
    assert cut.any() and not cut.all()
    for counts, scores in ((info, traces.score), (info["of_truncated"], traces.score[cut])):
        assert counts["tokens"] == len(scores)
        assert counts["mean_score"] == pytest.approx(scores.astype(float).mean(), abs=1e-5)
        assert counts["spike_share"] == pytest.approx((scores > 0.05).mean(), abs=1e-5)
        assert counts["spike_share"] > counts["realized_rate"]  # the window test refuses some
    assert answer(whole[1], prompts=6, **gate)[1]["per_task"] == info["per_task"]
    _, signed = answer(9, policy="disagreement", score="log_ratio", tau=-9, kappa=0)
    assert (signed["mean_score"], signed["spike_share"]) == (None, 1.0)
    assert answer(9)[1]["spike_share"] is None  # no gate

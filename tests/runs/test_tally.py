"""What a run counts: cut-off texts, its scores, its costs by the definition of each method, and the tokens of its bar."""

import math
import re
from array import array

import pandas as pd
import pytest
from lm_eval.api.instance import Instance

from lm_eval_takeover.demo import problems
from lm_eval_takeover.lab.methods import Ensemble, Lossy, Segment
from lm_eval_takeover.method.policies import ALONE, Disagreement, Early, Entropy, Random
from lm_eval_takeover.method.request import OBSERVED, Generation
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.runs.progress import Progress
from lm_eval_takeover.runs.recorder import count_asked, count_changed
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


TOKENS = [11, 12, 13, 14, 15, 16]
HOST = [11, 12, 93, 14, 95, 16]  # what the host draws at each place
TAKEN = [False, False, True, True, True, False]  # of three takeovers, one is the host's own token
MIXED = [False, False, True, False, True, False]  # of a mix, where the token is not the host's


def make_text(taken=TAKEN, host=HOST, traced=True, donor_answer=0):
    observed = array("f")
    for token in host:
        observed.extend([0.5] * (len(OBSERVED) - 1) + [token])
    scores = [0.0] * len(TOKENS)
    given = {"observed": observed if traced else None, "donor_answer": donor_answer}
    return Generation(list(TOKENS), list(taken), scores, **given)


UNKNOWN = [11, 12, math.nan, math.nan, math.nan, 16]  # the host is not asked where the donor writes
EVERYWHERE = {name: Disagreement(score=name) for name in ("ce", "rkl", "js", "top1", "surprise", "log_ratio")}
WHERE_IT_WRITES = {"entropy": Entropy(), **{name: Disagreement(score=name) for name in ("margin", "confidence")}}


@pytest.mark.parametrize(
    ("policy", "text", "changed", "asked"),
    [
        *((policy, make_text(), 2, 6) for policy in EVERYWHERE.values()),
        *((policy, make_text(), 2, 3) for policy in WHERE_IT_WRITES.values()),
        (Segment(score="ce"), make_text(), 2, 6),
        (Segment(score="entropy"), make_text(), 2, 3),
        (Lossy(), make_text(), 2, 6),
        (Ensemble(), make_text(MIXED), 2, 6),
        (Random(rate=0.5), make_text(host=UNKNOWN), None, 3),
        (Early(early_tokens=3), make_text(host=UNKNOWN), None, 3),
        (Early(rate=0.5), make_text(host=UNKNOWN, donor_answer=7), None, 10),
        (ALONE["base"](), make_text([False] * 6, TOKENS), 0, 0),
        (ALONE["guide"](), make_text([True] * 6, [math.nan] * 6), None, 6),
        (Disagreement(), make_text(traced=False), None, 6),
        (Disagreement(), make_text(host=HOST[3:]), 1, 6),  # it goes on with three tokens that were given
    ],
    ids=[*EVERYWHERE, *WHERE_IT_WRITES, "segment-ce", "segment-entropy", "lossy", "ensemble", "random", "early", "early-rate",
         "base", "guide", "untraced", "begun"],
)  # fmt: skip
def test_changed_and_asked_follow_from_the_method(policy, text, changed, asked):
    assert (count_changed(policy, text), count_asked(policy, text)) == (changed, asked)


def test_the_bar_has_tokens_of_unfinished_texts_their_rate_and_samples_from_before(capsys):
    """Short texts end first. If they have more takeovers, the rate of finished samples is too high until the end."""
    with Progress(10, 4, quiet=True) as silent:
        silent.finish(5, 2)
    assert capsys.readouterr().err == ""
    with Progress(10, 4, quiet=False) as bar:
        bar.count_tokens(200, 10)
        bar.count_tokens(1000, 0)
        assert re.fullmatch(r"1,200 tokens, [\d,]+/s, realized rate 0\.8%, 4 samples from before", bar.describe())
        bar.finish(5, 2)
        bar.count_tokens(1)  # by an engine that does not say who wrote it
        assert "/s, realized rate 40.0% of finished samples, 4 samples from before" in bar.describe()
    shown = capsys.readouterr().err
    assert "4/10" in shown and "5/10" in shown.rpartition("\r")[2]


def test_the_time_left_follows_from_tokens_before_most_samples_have_ended(capsys, monkeypatch):
    """Of 100 texts of 50 tokens, written together at 100 tokens a second, one ends: 10 seconds are left, not 99 times 40."""
    clock = iter([0.0, 0.0, 20.0, 40.0, 40.0, 40.0, 40.0])
    monkeypatch.setattr("lm_eval_takeover.runs.progress.time.perf_counter", lambda: next(clock))
    with Progress(100, quiet=False) as bar:
        bar.count_tokens(2000)
        bar.count_tokens(2000)
        bar.finish(50)
    assert "1/100 [00:00<00:10" in capsys.readouterr().err

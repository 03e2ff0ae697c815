"""What a run counts and keeps of its tokens: sums, bars, traces and prompts."""

import math
import re
from array import array
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers.pairs import METHODS, POLICIES, SAMPLED
from helpers.reference import all_logits
from helpers.run_dirs import make_sample, write_samples
from lm_eval.api.instance import Instance

from lm_eval_takeover.decoding import engine
from lm_eval_takeover.demo import problems
from lm_eval_takeover.lab.methods import Ensemble, Lossy, Segment
from lm_eval_takeover.method.policies import ALONE, Disagreement, Early, Entropy, Random
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.method.request import OBSERVED, Generation, Request, Sampling
from lm_eval_takeover.method.sampling import draw, request_digest, words
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.runs.evidence import window_means
from lm_eval_takeover.runs.journal import Journal, read_prompt
from lm_eval_takeover.runs.layout import PROMPTS
from lm_eval_takeover.runs.parquet import PROMPT_SCHEMA, TRACE_SCHEMA, make_prompt
from lm_eval_takeover.runs.progress import Progress
from lm_eval_takeover.runs.recorder import count_asked, count_changed
from lm_eval_takeover.runs.run_reader import read_stored_runs
from lm_eval_takeover.runs.run_writer import RunWriter


def make_rows(task, numbers, ending=""):
    instances = [
        SimpleNamespace(task_name=task, doc_id=n, doc={"problem": f"p{n}", "answer": n}, args=(f"ask p{n}{ending}", {}))
        for n in numbers
    ]
    requests = [Request((n, n + 1, *map(ord, ending)), 0, 5, Sampling(), label="r") for n in numbers]
    return list(map(make_prompt, instances, requests, numbers))


def test_prompts_are_kept_once_and_written_for_anyone(tmp_path):
    for rank, rows in enumerate((2 * make_rows("b", [3, 1]), make_rows("a", [7]), make_rows("b", [3], "!"))):  # asked otherwise
        RunWriter(tmp_path, rank, 3).begin("s", {}, [], rows)
        (tmp_path / PROMPTS).write_bytes((tmp_path / PROMPTS).read_bytes()[:-rank])  # what reads it is no part of ours
    run = RunWriter(tmp_path, 1, 3)
    run.begin("s", {}, [], make_rows("a", [7]))  # a resumed run
    run.close()
    table = pd.read_parquet(tmp_path / PROMPTS)
    assert list(table) == PROMPT_SCHEMA.names
    assert list(zip(table["task"], table["doc_id"], strict=True)) == [("a", 7), ("b", 1), ("b", 3), ("b", 3)]
    assert list(table["prompt"][2:]) == ["ask p3", "ask p3!"]
    with closing(Journal(tmp_path / "journal-001.sqlite", read_only=True)) as journal:
        (kept,) = map(read_prompt, journal.prompts().values())
    assert kept == {"task": "a", "doc_id": 7, "prompt": "ask p7", "prompt_ids": [7, 8], "problem": "p7", "answer": "7"}


def test_window_means_are_those_of_the_gate():
    scores = np.random.default_rng(0).exponential(size=50).astype(np.float32)
    for window in (1, 3, 10, 70):
        found = window_means(scores, window)
        assert np.isnan(found[0])
        for t in range(1, 50):
            assert found[t] == pytest.approx(scores[max(0, t - window) : t].astype(float).mean(), rel=1e-6)
    # An infinite score counts in its windows only.
    scores = np.array([1.0, np.inf, 2.0, 3.0, 4.0], np.float32)
    np.testing.assert_array_equal(window_means(scores, 2), np.array([np.nan, 1.0, np.inf, np.inf, 2.5], np.float32))


@pytest.mark.parametrize("block_size", [1, "auto"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("name", ["disagreement", "entropy", "random", "early", "base", "guide", "segment", "ensemble"])
def test_observations_are_those_of_full_passes(small_pair, prompts, name, direction, block_size):
    """Beside a plain pass of each model over the whole text: what the policy asked is there and right, the rest is null."""
    policy = replace((POLICIES | METHODS)[name], direction=direction)
    requests = [Request(prompt, 1, 14, SAMPLED, label="r") for prompt in prompts[:3]]
    made = dict(engine.generate(small_pair, policy, requests, batch_size=2, block_size=block_size, traced=True))
    plain = dict(engine.generate(small_pair, policy, requests, batch_size=2, block_size=block_size))
    for i, request in enumerate(requests):
        assert made[i].tokens == plain[i].tokens
        assert plain[i].observed is None
        seen = np.frombuffer(made[i].observed, np.float32).reshape(-1, len(OBSERVED))
        tokens = made[i].tokens
        assert len(seen) == len(tokens)
        logits = {}
        for member in small_pair.members:
            numbers = all_logits(member.model, request.prompt, tokens, small_pair.vocab_size)
            logits[member.role] = torch.from_numpy(numbers).float()
        host, donor = policy.host, policy.donor
        places = torch.arange(len(tokens))
        expected = {"base_entropy": scores.get("entropy")(logits["base"])}
        for column, role in (("host_logprob", host), ("donor_logprob", donor)):
            if role:
                expected[column] = logits[role].log_softmax(-1)[places, tokens]
        if host:
            chosen = logits[host][places, tokens][:, None]
            expected["donor_rank"] = (logits[host] > chosen).sum(-1) + 1
            at = words(0, request_digest(request.prompt), request.sample, len(tokens))
            expected["host_token"] = draw(logits[host], at, SAMPLED)
        if policy.mixes:  # the donor's is what is not the host's
            assert made[i].taken_over == (expected["host_token"] != torch.tensor(tokens)).tolist()
        both = policy.drafts or (block_size == 1 and host and donor)
        for place, column in enumerate(OBSERVED):
            there = ~np.isnan(seen[:, place])
            if both:
                assert there.all(), column
            if column not in expected:
                assert not there.any(), column
            else:
                np.testing.assert_allclose(seen[there, place], expected[column].numpy()[there], rtol=1e-3, atol=2e-4)
        if policy.writes(False) == "base" and name == "entropy":
            assert not np.isnan(seen[:, 0]).any()
        # Where the host was asked, what it draws is there, at takeovers and elsewhere; a guide alone has no host.
        asked = ~np.isnan(seen[:, OBSERVED.index("host_logprob")])
        np.testing.assert_array_equal(~np.isnan(seen[:, OBSERVED.index("host_token")]), asked)


def test_a_part_is_read_alike_by_pandas_polars_and_duckdb(tmp_path):
    task = 'it\'s a "task"/../x'
    write_samples(tmp_path, replace(make_sample(1), task=task))
    (path,) = (tmp_path / "traces").iterdir()
    table, by_polars = pd.read_parquet(path), pl.read_parquet(path)
    by_duckdb = duckdb.sql(f"SELECT token_id, chosen_from FROM '{path}'").fetchall()
    assert list(table) == by_polars.columns == TRACE_SCHEMA.names
    written = list(enumerate(("guide", "base", "base", "guide", "base")))
    assert by_polars.select("token_id", "chosen_from").rows() == by_duckdb == written
    assert list(zip(table["token_id"], table["chosen_from"], strict=True)) == written
    assert [*table["position"]] == [0, 1, 2, 3, 4] and [*table["score"]] == [0, 0.125, 0.25, 0.375, 0.5]
    assert set(table["task"]) == {task} and set(table["doc_id"]) == {1}


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
    """How many tokens a text has that ends by itself, its end token included."""
    (text,), info = answer(320)
    assert (text.truncated, info["truncated"]) == (False, 0.0)
    return info["tokens"]


def test_the_share_is_reported_per_task_and_kept_in_a_run_dir(whole, tmp_path):
    texts, first = answer(whole, prompts=6, run_dir=str(tmp_path))
    cut = [text.truncated for text in texts]
    assert 0 < sum(cut) < 6
    assert first["truncated"] == first["per_task"]["demo"]["truncated"] == sum(cut) / 6
    assert first["samples"] == 6
    again, second = answer(whole, prompts=6, run_dir=str(tmp_path))
    assert ([text.truncated for text in again], second["per_task"]) == (cut, first["per_task"])
    (run,) = read_stored_runs(tmp_path)
    assert sorted(sample.truncated for sample in run.samples.values()) == sorted(cut)


def test_the_mean_score_and_the_share_of_spikes_are_those_of_the_traces(whole, tmp_path):
    gate = {"policy": "disagreement", "tau": 0.05, "kappa": 30, "run_dir": str(tmp_path)}
    texts, info = answer(whole, prompts=6, **gate)
    traces = pd.read_parquet(tmp_path / "traces")
    cut = traces.doc_id.map([text.truncated for text in texts].__getitem__)
    assert cut.any() and not cut.all()
    for counts, kept in ((info, traces.score), (info["of_truncated"], traces.score[cut])):
        assert counts["tokens"] == len(kept)
        assert counts["mean_score"] == pytest.approx(kept.astype(float).mean(), abs=1e-5)
        assert counts["spike_share"] == pytest.approx((kept > 0.05).mean(), abs=1e-5)
        assert counts["spike_share"] > counts["realized_rate"]  # the window test refuses some
    assert answer(whole, prompts=6, **gate)[1]["per_task"] == info["per_task"]
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


# By method: the policy, a text, how many tokens its takeovers changed, and how often the donor was asked.
COSTS = {name: (policy, make_text(), 2, 6) for name, policy in EVERYWHERE.items()}
COSTS |= {name: (policy, make_text(), 2, 3) for name, policy in WHERE_IT_WRITES.items()}
COSTS |= {
    "segment-ce": (Segment(score="ce"), make_text(), 2, 6),
    "segment-entropy": (Segment(score="entropy"), make_text(), 2, 3),
    "lossy": (Lossy(), make_text(), 2, 6),
    "ensemble": (Ensemble(), make_text(MIXED), 2, 6),
    "random": (Random(rate=0.5), make_text(host=UNKNOWN), None, 3),
    "early": (Early(early_tokens=3), make_text(host=UNKNOWN), None, 3),
    "early-rate": (Early(rate=0.5), make_text(host=UNKNOWN, donor_answer=7), None, 10),
    "base": (ALONE["base"](), make_text([False] * 6, TOKENS), 0, 0),
    "guide": (ALONE["guide"](), make_text([True] * 6, [math.nan] * 6), None, 6),
    "untraced": (Disagreement(), make_text(traced=False), None, 6),
    "begun": (Disagreement(), make_text(host=HOST[3:]), 1, 6),  # it goes on with three tokens that were given
}


@pytest.mark.parametrize(("policy", "text", "changed", "asked"), COSTS.values(), ids=COSTS)
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

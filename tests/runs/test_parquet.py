"""Prompts stand in the run_dir once, whichever rank or attempt adds them; what a trace holds, and who can read it."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers.pairs import GREEDY, METHODS, POLICIES, SAMPLED
from helpers.run_dirs import HEADER, make_sample

from lm_eval_takeover.decoding import engine
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.method.request import OBSERVED, Request, Sampling
from lm_eval_takeover.method.sampling import draw, request_digest, words
from lm_eval_takeover.runs.layout import PROMPTS, PROMPTS_LOCK
from lm_eval_takeover.runs.parquet import (
    PROMPT_SCHEMA,
    TRACE_SCHEMA,
    add_prompts,
    make_prompt,
    pack_trace,
    read_prompts,
    tabulate,
    window_means,
    write_parquet,
)
from lm_eval_takeover.storage.files import Lock
from lm_eval_takeover.tasks.sampled import GPQA


def make_rows(task, numbers, ending=""):
    instances = [
        SimpleNamespace(task_name=task, doc_id=n, doc={"problem": f"p{n}", "answer": n}, args=(f"ask p{n}{ending}", {}))
        for n in numbers
    ]
    requests = [Request((n, n + 1, *map(ord, ending)), 0, 5, Sampling(), label="r") for n in numbers]
    return list(map(make_prompt, instances, requests))


def test_rows_are_added_once_and_read_by_anyone(tmp_path):
    add_prompts(tmp_path, 2 * make_rows("b", [3, 1]))
    add_prompts(tmp_path, make_rows("a", [7]))
    written = (tmp_path / PROMPTS).stat().st_mtime_ns
    add_prompts(tmp_path, make_rows("b", [1]))  # a resumed run
    assert (tmp_path / PROMPTS).stat().st_mtime_ns == written
    table = pd.read_parquet(tmp_path / PROMPTS)
    assert list(table) == PROMPT_SCHEMA.names
    assert list(zip(table["task"], table["doc_id"], strict=True)) == [("a", 7), ("b", 1), ("b", 3)]
    add_prompts(tmp_path, make_rows("b", [3], "!"))  # asked in another way
    assert [row["prompt"] for row in read_prompts(tmp_path)[2:]] == ["ask p3", "ask p3!"]
    assert read_prompts(tmp_path)[0] == {
        "task": "a", "doc_id": 7, "prompt": "ask p7", "prompt_ids": [7, 8], "problem": "p7", "answer": "7",
    }  # fmt: skip


def test_ranks_that_add_at_once_lose_nothing(tmp_path):
    held = Lock(tmp_path / PROMPTS_LOCK)
    ranks = [threading.Thread(target=add_prompts, args=(tmp_path, make_rows("a", [n]))) for n in range(6)]
    for rank in ranks:
        rank.start()
    held.release()
    for rank in ranks:
        rank.join()
    assert [row["doc_id"] for row in read_prompts(tmp_path)] == list(range(6))


def test_a_file_that_cannot_be_read_is_written_anew(tmp_path, caplog):
    (tmp_path / PROMPTS).write_bytes(b"noise")
    add_prompts(tmp_path, make_rows("a", [1]))
    assert "written again" in caplog.text
    assert len(read_prompts(tmp_path)) == 1


@pytest.mark.parametrize("withheld", [True, False])
def test_withheld_questions_leave_only_their_ids(withheld):
    data = {"test": datasets.Dataset.from_list([{"problem": "p1", "answer": "1"}])}
    task = {"task": "secret", "doc_to_text": "{{problem}}", "custom_dataset": lambda **_: data}
    GPQA(task | {"metadata": {"withhold_questions": withheld}})
    (row,) = make_rows("secret", [1])
    assert (row["prompt"], row["problem"]) == ((None, None) if withheld else ("ask p1", "p1"))
    assert (row["prompt_ids"], row["answer"]) == ([1, 2], "1")


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
            ids = torch.tensor([[*request.prompt, *tokens]])
            with torch.inference_mode():
                full = member.model(input_ids=ids).logits[0, len(request.prompt) - 1 : -1, : small_pair.vocabulary.size]
            logits[member.role] = full.float()
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


def test_a_part_holds_what_was_generated_for_pandas_polars_and_duckdb(demo_pair, prompts, tmp_path):
    requests = [Request(prompt, 0, 20, GREEDY, label="r") for prompt in prompts]
    policy = POLICIES["disagreement"]
    made = dict(engine.generate(demo_pair, policy, requests, batch_size=4, traced=True))
    task = 'it\'s a "task"/../x'
    samples = [replace(make_sample(i, tokens=len(g.tokens)), task=task, trace=pack_trace(g, HEADER)) for i, g in made.items()]
    path = tmp_path / "part.parquet"
    write_parquet(path, tabulate(samples))
    table, by_polars = pd.read_parquet(path), pl.read_parquet(path)
    by_duckdb = duckdb.sql(f"SELECT token_id, chosen_from FROM '{path}'").fetchall()
    assert list(table) == by_polars.columns == TRACE_SCHEMA.names
    assert by_polars.select("token_id", "chosen_from").rows() == by_duckdb
    assert by_polars["token_id"].to_list() == table["token_id"].tolist()
    for i, g in made.items():
        mine = table[table["doc_id"] == i]
        assert mine["token_id"].tolist() == g.tokens
        assert (mine["chosen_from"] == "guide").tolist() == g.taken_over
        assert mine["score"].tolist() == pytest.approx(g.scores, rel=1e-6)
        assert mine["position"].tolist() == list(range(len(g.tokens)))
    assert set(table["task"]) == {task}

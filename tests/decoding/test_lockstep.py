"""The lockstep loop equals an independent replay, token for token, and nothing but the request changes a text."""

import math
import random
from dataclasses import replace

import pytest
from helpers.pairs import POLICIES, SAMPLED, list_cases, look_before_passes
from helpers.reference import replay_request

from lm_eval_takeover.decoding.lockstep import generate
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import BaseAlone, Disagreement, Entropy
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair


def run(pair, policy, requests, batch_size, seed=0):
    return dict(generate(pair, policy, requests, seed=seed, batch_size=batch_size))


def assert_equal(pair, policy, requests, batch_sizes=(16, 3, 1)):
    """Returns whether the donor wrote, token by token."""
    first = run(pair, policy, requests, batch_sizes[0])
    expected = [replay_request(pair, policy, request, first[i].tokens) for i, request in enumerate(requests)]
    for batch_size in batch_sizes:
        order = list(range(len(requests)))[:: 3 if batch_size == 1 else 1]
        random.Random(batch_size).shuffle(order)
        made = run(pair, policy, [requests[i] for i in order], batch_size)
        for place, i in enumerate(order):
            tokens, taken, scores = expected[i]
            assert made[place].tokens == tokens, f"batch size {batch_size}, request {i}"
            assert made[place].taken_over == taken
            if policy.scorer is not None:
                assert made[place].scores == pytest.approx(scores, rel=1e-4, abs=2e-5)
            else:
                assert all(math.isnan(score) for score in made[place].scores)
    return [fire for _, taken, _ in expected for fire in taken]


@pytest.mark.parametrize(("name", "direction", "sampling"), list_cases(POLICIES))
def test_equals_the_replay(small_pair, prompts, name, direction, sampling):
    policy = replace(POLICIES[name], direction=direction)
    samples = (0, 1, 2) if sampling is SAMPLED else (0,)
    requests = [Request(p, j, 15 + 4 * i, sampling) for i, p in enumerate(prompts[:3]) for j in samples]
    taken = assert_equal(small_pair, policy, requests)
    assert any(taken) == (name != "base")
    assert all(taken) == (name == "guide")


@pytest.mark.parametrize("name", ["disagreement", "random", "guide"])
def test_equals_the_replay_to_the_end_of_text(demo_pair, prompts, name):
    requests = [Request(prompts[0], 0, 400, SAMPLED), Request(prompts[3], 1, 400, SAMPLED)]
    made = run(demo_pair, POLICIES[name], requests, 16)
    for i, request in enumerate(requests):
        assert replay_request(demo_pair, POLICIES[name], request, made[i].tokens)[:2] == (made[i].tokens, made[i].taken_over)
    ends = demo_pair.base.eos_ids
    assert all(generation.tokens[-1] in ends for generation in made.values())
    assert not any(set(generation.tokens[:-1]) & ends for generation in made.values())


@pytest.mark.parametrize(
    ("name", "sampling"),
    [("disagreement", Sampling(1.0)), ("entropy", Sampling(0.8, 0.9, 20)), ("random", Sampling(1.3, 1.0, 3)),
     ("disagreement", Sampling(0.8, 0.9, 20))],
    ids=str,
)  # fmt: skip
def test_equals_the_replay_on_two_architectures(rough_pair, prompts, name, sampling):
    """Random weights, other layers and heads, padded vocabularies of 512 and 544: the shared part counts."""
    assert rough_pair.vocabulary.size == 512
    policy = {
        "disagreement": Disagreement(gate=Gate(7.6, 0.99)),
        "entropy": Entropy(gate=Gate(5.2, 1.0)),
        "random": POLICIES["random"],
    }[name]
    requests = [Request(p, j, 16, sampling) for p in prompts for j in range(2)]
    taken = assert_equal(rough_pair, policy, requests)
    assert 0.05 < sum(taken) / len(taken) < 0.95  # both models write, or the test would show little


def test_a_prompt_is_prefilled_once_per_model(small_pair, prompts, monkeypatch):
    seen, requests = [], [Request(p, j, 4, SAMPLED) for j in range(8) for p in prompts]
    run(small_pair, POLICIES["disagreement"], requests[:1], 1)  # a first run has checks of its own
    look_before_passes(monkeypatch, lambda role, ids, reads_prompt: seen.extend([role] * len(ids) * reads_prompt))
    for batch_size in (1, 3, 8, 16, 100):
        seen.clear()
        run(small_pair, POLICIES["disagreement"], requests, batch_size)
        assert sorted(seen) == ["base"] * len(prompts) + ["guide"] * len(prompts)


def test_models_that_a_policy_does_not_ask_are_not_loaded():
    pair = Pair(Member("base", str(DEMO["base"])), Member("guide", str(DEMO["guide"])))
    run(pair, BaseAlone(), [Request((1, 2, 3), 0, 2)], 1)
    assert "model" in vars(pair.base)
    assert "model" not in vars(pair.guide)

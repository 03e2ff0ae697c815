"""Every engine writes, token for token, what an independent replay writes, and nothing but the request changes a text."""

import math
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from helpers.pairs import GREEDY, METHODS, POLICIES, SAMPLED
from helpers.reference import all_logits, replay_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from scipy.special import log_softmax
from scipy.stats import chisquare

from lm_eval_takeover.decoding import blockwise, engine, lockstep
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.methods import Ensemble, Lossy
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import BaseAlone, Disagreement, Entropy, GuideAlone, Random
from lm_eval_takeover.method.request import Generation, Request, Sampling
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

EVERY = POLICIES | METHODS
ROUGH = {
    "disagreement": Disagreement(gate=Gate(7.6, 0.99)),
    "entropy": Entropy(gate=Gate(5.2, 1.0)),
    "random": Random(rate=0.2),
}
# Policy, direction, sampling. The rough pair: two architectures, padded vocabularies of 512 and 544.
CASES = [("small", name, "forward", SAMPLED) for name in EVERY]
CASES += [("small", name, "forward", GREEDY) for name in ("disagreement", "entropy", "lossy", "segment")]
CASES += [("small", name, "reverse", SAMPLED) for name in ("disagreement", "random", "ensemble")]
CASES += [("rough", "disagreement", "forward", how) for how in (Sampling(0.8, 0.9, 20), Sampling(1.2, min_p=0.05))]
CASES += [("rough", "entropy", "forward", Sampling(0.8, 0.9, 20, 0.1)), ("rough", "random", "forward", Sampling(1.3, 1.0, 3))]


def assert_same(made, expected, where, close=(1e-3, 5e-5)):
    assert made.tokens == expected.tokens, where
    assert made.taken_over == expected.taken_over, where
    assert made.scores == pytest.approx(expected.scores, rel=close[0], abs=close[1], nan_ok=True), where


@pytest.mark.parametrize(("kind", "name", "direction", "sampling"), CASES, ids=str)
def test_every_engine_writes_what_the_replay_writes(
    demo_pair, small_pair, rough_pair, prompts, kind, name, direction, sampling
):
    """In batches and blocks of any size and in any order; the replay needs one pass a token and shares no code with them."""
    pair = rough_pair if kind == "rough" else demo_pair if "sentence" in name else small_pair  # small ones write no sentences
    policy = replace((ROUGH if kind == "rough" else EVERY)[name], direction=direction)
    samples = (0,) if sampling is GREEDY else (0, 1)
    lengths = (18, 9, 14, 5) if kind == "small" else (16, 16, 16, 16)
    requests = [Request(p, j, n, sampling) for p, n in zip((*prompts[:3], (65,)), lengths, strict=True) for j in samples]
    expected = dict(lockstep.generate(pair, policy, requests, seed=3, batch_size=8, traced=True))
    for i, request in enumerate(requests):
        tokens, taken, scores = replay_request(pair, policy, request, expected[i].tokens, seed=3)
        replayed = Generation(tokens, taken, scores if policy.scorer is not None else [math.nan] * len(scores))
        assert_same(expected[i], replayed, f"request {i}", close=(1e-4, 2e-5))
    written = {fire for one in expected.values() for fire in one.taken_over}
    assert written == ({False} if name in ("base", "never") else {True} if name in ("guide", "always") else {False, True})
    blocks = [(1, 7), (5, None), (16, 3)] if policy.drafts or policy.host is None else [(1, None), (5, None)]
    for batch_size, block in ((3, "lockstep"), *blocks):
        order = list(range(len(requests)))
        random.Random(batch_size).shuffle(order)
        options = {"seed": 3, "batch_size": batch_size, "traced": True}
        run = lockstep.generate if block == "lockstep" else blockwise.generate
        options |= {} if block == "lockstep" else {"block_size": block}
        made = dict(run(pair, policy, [requests[i] for i in order], **options))
        for place, i in enumerate(order):
            assert_same(made[place], expected[i], f"batch {batch_size}, block {block}, request {i}")
            if policy.drafts:
                assert list(made[place].observed) == pytest.approx(list(expected[i].observed), rel=1e-2, abs=1e-3, nan_ok=True)
                assert getattr(made[place], f"{policy.donor}_passes") <= getattr(expected[i], f"{policy.donor}_passes")


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 14)), min_size=1, max_size=9),
    st.floats(0.0, 8.0),
    st.floats(0.0, 3.0),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([1, 2, 3, 5, 16, None]),
    st.booleans(),
)
def test_any_schedule_of_takeovers_keeps_the_books(small_pair, shapes, tau, kappa, window, batch_size, block_size, greedy):
    texts = [tuple((i // 2 + j) % 7 for j in range(length)) for i, (length, _) in enumerate(shapes)]
    sampling = GREEDY if greedy else Sampling(1.0)
    requests = [Request(text, i, limit, sampling) for i, (text, (_, limit)) in enumerate(zip(texts, shapes, strict=True))]
    policy = Disagreement(gate=Gate(tau, kappa, window))
    expected = dict(lockstep.generate(small_pair, policy, requests, batch_size=8))
    for i, one in blockwise.generate(small_pair, policy, requests, batch_size=batch_size, block_size=block_size):
        assert_same(one, expected[i], i)


@pytest.mark.parametrize("name", ["disagreement", "entropy", "random", "guide"])
@settings(max_examples=2)
@given(share=st.floats(0, 0.99), sampled=st.booleans())
def test_a_text_goes_on_from_any_of_its_tokens_as_it_was_written(rough_pair, prompts, name, share, sampled):
    policy = POLICIES[name]
    asked = [Request(p, j, 14, SAMPLED if sampled else GREEDY) for p in prompts[:2] for j in (0, 1)]
    whole = dict(lockstep.generate(rough_pair, policy, asked, batch_size=4))
    begun = []
    for i, request in enumerate(asked):
        place = int(share * len(whole[i].tokens))
        scores = tuple(whole[i].scores[max(0, place - policy.window) : place])
        begun.append(replace(request, begun=tuple(whole[i].tokens[:place]), begun_scores=scores))
    for kind, generate in (("lockstep", lockstep.generate), ("blocks", blockwise.generate)):
        for i, generation in generate(rough_pair, policy, begun, batch_size=3):
            place = len(begun[i].begun)
            assert generation.tokens == whole[i].tokens, (kind, place)
            assert generation.taken_over[place:] == whole[i].taken_over[place:], (kind, place)
            assert generation.scores[place:] == pytest.approx(whole[i].scores[place:], abs=1e-4, nan_ok=True)


def test_a_thinking_budget_forces_the_end_tag_in_every_engine(demo_pair, prompts):
    """At N tokens of thinking, whoever drafts. Before and behind it stands what the guide draws there; a text that does not think
    is as without a budget."""
    opens, ends = (demo_pair.tokenizer.convert_tokens_to_ids(tag) for tag in ("<think>", "</think>"))
    policy = GuideAlone(thinking_budget=7)
    requests = [Request((*prompt, opens), j, 20, SAMPLED) for prompt in prompts[:2] for j in range(2)]
    requests += [Request((*prompts[0], opens, 65, ends), 0, 20, SAMPLED)]
    expected = dict(lockstep.generate(demo_pair, policy, requests, batch_size=8, traced=True))
    for i, request in enumerate(requests):
        one, place = expected[i], 7 if i < 4 else None
        drawn, *_ = replay_request(demo_pair, policy, request, one.tokens)
        assert one.tokens[7] == ends if place else ends not in one.tokens
        assert [token for t, token in enumerate(one.tokens) if t != place] == [d for t, d in enumerate(drawn) if t != place]
        assert one.thought_cut == (place is not None) and all(one.taken_over)
        log_probability = np.reshape(one.observed, (20, -1))[7, 2]  # a forced token has none
        assert math.isnan(log_probability) == (place is not None)
    for block_size in (3, "auto"):
        made = dict(engine.generate(demo_pair, policy, requests, batch_size=3, block_size=block_size, traced=True))
        for i, one in made.items():
            assert (one.tokens, one.thought_cut) == (expected[i].tokens, expected[i].thought_cut), (block_size, i)


@dataclass(frozen=True, kw_only=True)
class Hurried(Disagreement):
    thinking_budget: int | None = 6


def test_behind_a_forced_tag_a_gate_sees_the_scores_of_what_stands(demo_pair, prompts):
    """A plug-in's policy may have a gate and a budget. Scores of a draft behind the tag that cuts it short do not count."""
    opens = demo_pair.tokenizer.convert_tokens_to_ids("<think>")
    requests = [Request((*prompt, opens), j, 30, SAMPLED) for prompt in prompts for j in range(4)]
    policy = Hurried(gate=Gate(0.1, 2.0))
    expected = dict(lockstep.generate(demo_pair, policy, requests, batch_size=16))
    made = dict(blockwise.generate(demo_pair, policy, requests, batch_size=16, block_size=8))
    assert sum(one.thought_cut for one in expected.values()) > 8
    for i, one in made.items():
        assert (one.tokens, one.taken_over) == (expected[i].tokens, expected[i].taken_over), i


@pytest.mark.parametrize(
    ("budget", "told"), [(5, "the guide has no tokens <think> and </nothing>; leave"), (-1, "thinking_budget=-1 is negative")]
)
def test_a_thinking_budget_that_cannot_be_kept_is_refused(demo_pair, monkeypatch, budget, told):
    monkeypatch.setattr("lm_eval_takeover.decoding.rows.TAGS", (("<think>", "</nothing>"),))
    with pytest.raises(ArgumentError, match=told):
        list(engine.generate(demo_pair, GuideAlone(thinking_budget=budget), [Request((1,))]))


def test_a_thinking_budget_belongs_to_the_identity_and_such_texts_count_in_truncated():
    settings = {"max_gen_toks": 40, "until": [" the"]}  # which ends both texts, within their limits
    asked = [Instance("generate_until", {}, (f"How far?{tail}", settings), 0) for tail in ("<think>", "")]
    lm = GuidedTakeover(policy="guide", thinking_budget=2)
    assert [text.truncated for text in lm.generate_until(asked, disable_tqdm=True)] == [True, False]
    told, other = lm.get_model_info()["takeover"], GuidedTakeover(policy="guide")
    assert (told["thinking_budget"], told["truncated"]) == (2, 0.5)
    settings = [model._collect_settings()["policy"] for model in (lm, other)]
    assert settings[0] == settings[1] | {"thinking_budget": 2}


def test_models_that_a_policy_does_not_ask_are_not_loaded():
    pair = Pair(Member("base", str(DEMO["base"])), Member("guide", str(DEMO["guide"])))
    list(lockstep.generate(pair, BaseAlone(), [Request((1, 2, 3), 0, 2)]))
    assert "model" in vars(pair.base)
    assert "model" not in vars(pair.guide)


DRAWS = 1500
LAWS = {
    "ce": Disagreement(gate=Gate(0.0)),
    "top1": Disagreement(score="top1", gate=Gate(0.0), chance=0.5),
    "surprise": Disagreement(score="surprise", gate=Gate(1.8)),
    "log_ratio": Disagreement(score="log_ratio", gate=Gate(0.1)),
    "lossy": Lossy(leniency=0.9),
    "residual": Lossy(residual=True),
    "random": Random(rate=0.5),
}


@pytest.mark.parametrize("name", [*LAWS, "ensemble"])
def test_a_takeover_has_the_law_of_the_donor(small_pair, prompts, name):
    """The first tokens of many samples: of those that were taken over, as many of each as the donor's distribution gives.

    With a mix, all tokens have its law: at leniency 1 speculative sampling's, which is the donor's own. Blocks write the same.
    """
    policy = Ensemble() if name == "ensemble" else LAWS[name]
    requests = [Request(prompts[3], sample, 2, Sampling(1.0)) for sample in range(DRAWS)]
    made = [one for _, one in lockstep.generate(small_pair, policy, requests, batch_size=1000)]
    drawn = [one.tokens[0] for one in made if one.taken_over[0] or policy.mixes]
    host, donor = (all_logits(member.model, prompts[3], (0,), small_pair.vocab_size)[0] for member in small_pair.members)
    law = np.exp(log_softmax((host + donor) / 2 if name == "ensemble" else donor))
    often = law / law.sum() * len(drawn) >= 8
    found = np.bincount(drawn, minlength=len(law))
    counts = [np.append(each[often], each[~often].sum()) for each in (found, law / law.sum() * len(drawn))]
    assert len(drawn) > DRAWS / 20 and often.sum() > 3
    assert chisquare(*counts).pvalue > 1e-3

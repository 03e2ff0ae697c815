"""The lockstep loop equals an independent replay, token for token, and nothing but the request changes a text.

Of the methods of other papers, too, whose blocks, batches and restarts equal lockstep.
"""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from helpers.pairs import GREEDY, METHODS, POLICIES, SAMPLED, list_cases, look_before_passes
from helpers.reference import all_logits, log_softmax, replay_request
from scipy.stats import chisquare

from lm_eval_takeover.decoding import blockwise
from lm_eval_takeover.decoding.lockstep import generate
from lm_eval_takeover.decoding.teacher_forcing import force
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.lab.methods import Ensemble, Lossy, Segment
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.policies import ALONE, BaseAlone, Disagreement, Early, Entropy, Random
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


REVERSED = [(name, "reverse") for name in ("surprise", "segment", "lossy", "ensemble")]


@pytest.mark.parametrize(("name", "direction"), [*((name, "forward") for name in METHODS), *REVERSED])
def test_every_engine_writes_what_the_replay_writes(demo_pair, small_pair, prompts, name, direction):
    pair = demo_pair if "sentence" in name else small_pair  # whose texts have none
    policy = replace(METHODS[name], direction=direction)
    requests = [Request(prompts[0], 0, 26, GREEDY), *(Request(p, j, 32, SAMPLED) for p in prompts[1:3] for j in (0, 1))]
    expected = dict(generate(pair, policy, requests, seed=3, batch_size=8, traced=True))
    both = set()
    for i, request in enumerate(requests):
        tokens, taken, scores = replay_request(pair, policy, request, expected[i].tokens, seed=3)
        assert (expected[i].tokens, expected[i].taken_over) == (tokens, taken), f"request {i}"
        if policy.scorer is not None:
            assert expected[i].scores == pytest.approx(scores, rel=1e-4, abs=2e-5)
        both.update(taken)
    assert both == {False, True}
    for batch_size, block in ((1, 7), (8, 5), (8, None)):
        options = {"seed": 3, "batch_size": batch_size, "block_size": block, "traced": True}
        made = dict(blockwise.generate(pair, policy, requests[::-1], **options))
        for i, one in expected.items():
            found = made[len(requests) - 1 - i]
            assert (found.tokens, found.taken_over) == (one.tokens, one.taken_over), f"batch {batch_size}, request {i}"
            assert found.scores == pytest.approx(one.scores, rel=1e-3, abs=5e-5, nan_ok=True)
            if policy.drafts:
                assert list(found.observed) == pytest.approx(list(one.observed), rel=1e-2, abs=1e-3, nan_ok=True)
                assert getattr(found, f"{policy.donor}_passes") <= getattr(one, f"{policy.donor}_passes")


@pytest.mark.parametrize("name", ["segment", "ensemble", "lossy"])
def test_a_text_that_was_begun_goes_on_as_it_would_have(demo_pair, prompts, name):
    """As after a pass that failed: the tokens so far stand, and who holds the pen follows from them."""
    request = Request(prompts[0], 1, 40, SAMPLED)
    (whole,) = (one for _, one in generate(demo_pair, METHODS[name], [request]))
    for count in (1, 17, 18, 20, 33):
        begun = Generation(whole.tokens[:count], whole.taken_over[:count], whole.scores[:count])
        ((_, again),) = generate(demo_pair, METHODS[name], [request], begun=[begun])
        assert (again.tokens, again.taken_over) == (whole.tokens, whole.taken_over)


DRAWS = 1500
LAWS = {
    "ce": Disagreement(gate=Gate(0.0)),
    "top1": Disagreement(score="top1", gate=Gate(0.0), chance=0.5),
    "surprise": Disagreement(score="surprise", gate=Gate(1.8)),
    "log_ratio": Disagreement(score="log_ratio", gate=Gate(0.1)),
    "segment of surprise": Segment(score="surprise", gate=Gate(1.8), length=2),
    "lossy": Lossy(leniency=0.9),
    "residual": Lossy(residual=True),
    "random": Random(rate=0.5),
    "early": Early(early_tokens=1),
}


@pytest.mark.parametrize("name", [*LAWS, "ensemble"])
def test_a_takeover_has_the_law_of_the_donor(small_pair, prompts, name):
    """The first tokens of many samples: of those that were taken over, as many of each as the donor's distribution gives.

    With a mix, all tokens have its law: at leniency 1 speculative sampling's, which is the donor's own. Blocks write the same.
    """
    policy = Ensemble() if name == "ensemble" else LAWS[name]
    requests = [Request(prompts[3], sample, 2, Sampling(1.0)) for sample in range(DRAWS)]
    made = [one for _, one in generate(small_pair, policy, requests, batch_size=1000)]
    drawn = [one.tokens[0] for one in made if one.taken_over[0] or policy.mixes]
    host, donor = (all_logits(member.model, prompts[3], (0,), small_pair.vocab_size)[0] for member in small_pair.members)
    law = np.exp(log_softmax((host + donor) / 2 if name == "ensemble" else donor))
    often = law / law.sum() * len(drawn) >= 8
    found = np.bincount(drawn, minlength=len(law))
    counts = [np.append(each[often], each[~often].sum()) for each in (found, law / law.sum() * len(drawn))]
    assert len(drawn) > DRAWS / 20 and often.sum() > 3
    assert chisquare(*counts).pvalue > 1e-3


@pytest.mark.parametrize("name", ["log_ratio", "segment", "segment to the end of a sentence", "ensemble"])
def test_a_text_that_stands_is_met_as_it_was_written(demo_pair, prompts, name):
    """Greedy texts of the host: every token is its draw, and a mix that agrees is no takeover."""
    request = Request(prompts[0], 0, 30, GREEDY)
    (written,) = (one for _, one in generate(demo_pair, ALONE["base"](), [request]))
    (forced,) = force(demo_pair, METHODS[name], [request.prompt], [written.tokens])
    if isinstance(METHODS[name], Ensemble):
        assert not forced.taken_over.any()
    else:
        first = next(t for t, taken in enumerate(forced.taken_over) if taken)
        (guided,) = (one for _, one in generate(demo_pair, METHODS[name], [request]))
        assert guided.taken_over[: first + 1] == forced.taken_over.tolist()[: first + 1]
        if isinstance(METHODS[name], Segment):
            assert forced.taken_over[first : first + 2].all()

"""Scores, gate and draws on tensors, beside slow references."""

import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from helpers import reference
from helpers.one_line import one_line
from helpers.pairs import SAMPLINGS
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.gate import Gate, fires, fires_along, push
from lm_eval_takeover.method.policies import Disagreement, Random
from lm_eval_takeover.method.policy import Block
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import CHANCE, as_chances, draw, drawing, flush_denormals, request_digest, words

SCORES = ("ce", "rkl", "entropy", "js")
cross_entropy, reverse_kl, entropy, jensen_shannon = map(scores.get, SCORES)

LN2 = math.log(2)
finite = st.floats(-60, 60, width=32)
pairs = st.integers(2, 40).flatmap(lambda v: st.tuples(*[arrays(np.float32, v, elements=finite)] * 2))


def logits(*probabilities):
    return torch.tensor([probabilities]).log()


def test_scores_of_disjoint_distributions():
    host, donor = logits(1.0, 0.0), logits(0.0, 1.0)
    assert cross_entropy(host, donor).item() == math.inf
    assert reverse_kl(host, donor).item() == math.inf
    assert jensen_shannon(host, donor).item() == pytest.approx(LN2)
    assert entropy(host).item() == 0


@given(pairs)
def test_bounds_hold_for_any_distributions(pair):
    host, donor = (torch.from_numpy(one)[None] for one in pair)
    ce, h = cross_entropy(host, donor).item(), entropy(host).item()
    assert ce >= h - 1e-5 * max(1, h)
    assert reverse_kl(host, donor).item() >= 0
    assert reverse_kl(host, donor).item() == pytest.approx(ce - h, rel=1e-4, abs=1e-4)
    js = jensen_shannon(host, donor).item()
    assert 0 <= js <= LN2
    assert js == pytest.approx(jensen_shannon(donor, host).item(), abs=1e-6)
    assert reverse_kl(host, host).item() == 0  # equal models disagree by nothing
    assert jensen_shannon(host, host).item() == pytest.approx(0, abs=1e-6)
    assert cross_entropy(host, host).item() == pytest.approx(h, rel=1e-5, abs=1e-6)


def test_js_top_p_truncates_and_renormalises_both_sides():
    host, donor = logits(0.6, 0.3, 0.1), logits(0.1, 0.6, 0.3)
    # nuclei at 0.8: host {0, 1} -> (2/3, 1/3, 0), donor {1, 2} -> (0, 2/3, 1/3)
    truncated = logits(2 / 3, 1 / 3, 0.0), logits(0.0, 2 / 3, 1 / 3)
    assert jensen_shannon(host, donor, top_p=0.8).item() == pytest.approx(jensen_shannon(*truncated).item(), rel=1e-5)
    assert jensen_shannon(host, donor, top_p=1.0).item() < jensen_shannon(host, donor, top_p=0.8).item()


@pytest.mark.parametrize(
    ("rows", "vocab", "scale"), [(3, 151_936, 1.0), (3, 151_936, 8.0), *((40, 300, s) for s in (1.0, 8.0, 40.0))]
)
def test_scores_equal_float64(rows, vocab, scale):
    """Also where one token is all but certain: relative to the score, not to 1."""
    generator = torch.Generator().manual_seed(5)
    host, donor = (torch.randn(rows, vocab, generator=generator) * scale for _ in range(2))
    donor[::2] = host[::2] + donor[::2] / 100
    tokens = (host.softmax(-1) + 1e-6).multinomial(1, generator=generator)[:, 0]
    close = dict.fromkeys(SCORES, (2e-5, 2e-6)) | {"log_ratio": (3e-4, 1e-4)}  # of a difference
    # The reference subtracts from 1.
    close |= dict.fromkeys(("margin", "confidence", "top1", "surprise"), (3e-4, 1e-14))
    for name, (relative, noise) in close.items():
        score = scores.get(name)
        each = zip(host.double().numpy(), donor.double().numpy(), tokens.tolist(), strict=True)
        expected = np.array([reference.score_of(name, *row) for row in each])
        found = score(host[:, None], donor[:, None], tokens[:, None])  # any leading shape
        np.testing.assert_allclose(found[:, 0].numpy(), expected, rtol=relative, atol=noise)
        for wrong in (torch.nan, torch.inf):
            assert score(host.index_fill(-1, torch.tensor([3]), wrong), donor, tokens).isnan().all()


@given(st.lists(st.floats(0, 20, width=32), max_size=60), st.floats(0, 5), st.floats(0, 30), st.integers(1, 80))
def test_both_forms_equal_the_definition(scores, tau, kappa, window):
    gate = Gate(tau, kappa, window)
    recent, fired = torch.zeros(1, window), []
    for t, s in enumerate(scores):
        score = torch.tensor([s])
        fired.append(bool(fires(gate, score, recent, t)))
        recent = push(recent, score)
    expected = reference.fires_along(scores, tau, kappa, window)
    assert fired == expected
    assert fires_along(gate, torch.tensor(scores, dtype=torch.float32)).tolist() == expected


DENORMAL = torch.tensor(1e-40)


def test_words_are_fixed_for_ever():
    """Another machine or another version of numpy must not change what a seed writes."""
    known = [f"{w:016x}" for w in words(0, request_digest((1, 2, 3)), 0, 3).tolist()]
    assert known == ["5068ed1978a05a31", "906de9e399f1836a", "86b300c3aa04d619"]
    for t in range(3):  # whatever number of words is asked for
        assert words(0, request_digest((1, 2, 3)), 0, t + 1)[t] == reference.word(0, (1, 2, 3), 0, t)


LARGE = [
    (Sampling(1.0), 0.1), (Sampling(0.6, 0.95), 2.0), (Sampling(0.6, 0.95), 0.2), (Sampling(1.0, 0.5), 0.0),
    (Sampling(1.0, 0.9, 20), 0.0), (Sampling(0.6, 0.95, 20), 0.5), (Sampling(1.0, 0.99, 5000), 6.0),
    (Sampling(1.0, 1.0, 1024), 3.0), (Sampling(1.0, min_p=0.01), 2.0),
]  # fmt: skip
CASES = [(40, 97, how, scale) for how in SAMPLINGS for scale in (0.0, 0.5, 3.0, 12.0)] + [(2, 40_000, *case) for case in LARGE]


@pytest.mark.parametrize(("rows", "vocab", "how", "scale"), CASES, ids=str)
def test_every_draw_is_that_of_the_definition(rows, vocab, how, scale):
    """Ties and certainties included (scale 0: all tokens are equal), and large vocabularies."""
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * scale
    logits[:, 13] = logits[:, 14]
    logits[::5, 3] = -torch.inf
    at = np.random.default_rng(0).integers(0, 2**64, rows, dtype=np.uint64)
    each = zip(logits.double().numpy(), at.tolist(), strict=True)
    expected = [reference.draw(row, word, *astuple(how)) for row, word in each]
    assert draw(logits, at, how).tolist() == expected


@pytest.mark.parametrize("how", [Sampling(1.0), Sampling(1.5, 0.8, 9, 0.3)], ids=str)
def test_winners_follow_the_distribution_of_transformers(how):
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(4)) * 1.5
    count = 8000
    at = words(3, request_digest((9,)), 0, count)
    drawn = np.bincount(draw(logits.expand(count, 12), at, how).numpy(), minlength=12)
    cuts = [TemperatureLogitsWarper(how.temperature), *([TopKLogitsWarper(how.top_k)] if how.top_k else [])]
    for warp in (*cuts, TopPLogitsWarper(how.top_p), MinPLogitsWarper(how.min_p)):
        logits = warp(None, logits)
    law = logits[0].double().softmax(-1).numpy()
    kept = law > 0
    assert not drawn[~kept].any()
    assert stats.chisquare(drawn[kept], law[kept] * count).pvalue > 1e-3


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Gate(math.nan), "tau=nan"),
        (lambda: Gate(1.0, -2.0), "kappa=-2.0"),
        (lambda: Gate(1.0, math.nan), "kappa=nan"),
        (lambda: Gate(1.0, 1.0, 0), "window=0 is not in 1 to 65536 tokens; kappa=0 turns the window test off"),
        (lambda: Gate(1.0, 1.0, 10**9), "window=1000000000 is not in 1 to 65536 tokens"),
        (lambda: Disagreement(gate=Gate(-0.1)), "tau=-0.1 is not a number of at least 0, as every score=ce is"),
        (lambda: Sampling(-1), "temperature=-1 is neither 0"),
        (lambda: Sampling(math.nan), "temperature=nan"),
        (lambda: Sampling(1, top_p=0), "top_p=0 is outside"),
        (lambda: Sampling(1, top_p=1.1), "top_p=1.1 is outside"),
        (lambda: Sampling(1, top_k=-1), "top_k=-1 is negative"),
        (lambda: Sampling(1, min_p=1.5), "min_p=1.5 is outside"),
    ],
)
def test_impossible_gates_and_settings_are_refused(make, text):
    with one_line(ArgumentError, text):
        make()
    assert Disagreement(score="log_ratio", gate=Gate(-0.1)).gate.tau == -0.1  # a score that may be negative


def test_denormals_are_zero_within_and_numbers_without():
    for context in (flush_denormals, drawing):
        assert float(DENORMAL * 1.0) > 0
        with context():
            with flush_denormals():
                pass
            assert float(DENORMAL * 1.0) == 0  # as the outer one left it
    assert float(DENORMAL * 1.0) > 0 and np.finfo(np.float32).smallest_subnormal > 0


@pytest.mark.parametrize("rate", [0.02, 0.0684])
def test_random_takeovers_of_many_short_texts_have_their_rate(rate):
    """10^5 tokens, as 8 samples of 250 prompts: of all, of each sample, of each position, and of a takeover's next token."""
    policy = Random(rate=rate)
    drawn = [[words(1, request_digest([5, prompt]), j, 50, stream=CHANCE) for j in range(8)] for prompt in range(250)]
    chance = as_chances(torch.from_numpy(np.array(drawn).view(np.int64)))
    at = Block(torch.arange(50)[None], torch.zeros(1, 50), torch.zeros(1, 10), chance.view(-1, 50))
    taken = policy.takes_over(at).numpy().reshape(chance.shape)

    def deviation(part):  # in standard errors
        return abs(part.mean() - rate) / np.sqrt(rate * (1 - rate) / part.size)

    assert deviation(taken) < 3
    assert max(deviation(taken[:, j]) for j in range(8)) < 3.5
    assert max(deviation(taken[..., t]) for t in range(50)) < 4
    assert deviation(taken[..., 1:][taken[..., :-1]]) < 3

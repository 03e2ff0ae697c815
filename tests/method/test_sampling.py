"""The race: its definition, its distribution, and that nothing but its arguments can change a draw."""

from dataclasses import astuple

import numpy as np
import pytest
import torch
from helpers import reference
from scipy import stats
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policies import Random
from lm_eval_takeover.method.policy import Block
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import chances, draw, drawing, flush_denormals, request_digest, words

SETTINGS = [
    Sampling(), Sampling(1.0), Sampling(0.6, 0.95), Sampling(0.7, 1.0, 3), Sampling(1.3, 0.5, 7), Sampling(1.0, 1e-9),
    Sampling(0.2, 0.999), Sampling(1.5, min_p=0.1), Sampling(1.0, 0.9, min_p=0.3), Sampling(1.2, 0.9, 7, 0.2),
    Sampling(1.0, min_p=1.0),
]  # fmt: skip
DENORMAL = torch.tensor(1e-40)


def test_words_are_fixed_for_ever():
    """Another machine or another version of numpy must not change what a seed writes."""
    known = [f"{w:016x}" for w in words(0, request_digest((1, 2, 3)), 0, 3).tolist()]
    assert known == ["5068ed1978a05a31", "906de9e399f1836a", "86b300c3aa04d619"]
    for t in range(3):  # whatever number of words is asked for
        assert words(0, request_digest((1, 2, 3)), 0, t + 1)[t] == reference.word(0, (1, 2, 3), 0, t)


LARGE = [(Sampling(1.0), 0.1), (Sampling(0.6, 0.95), 2.0), (Sampling(1.0, 0.99, 5000), 6.0), (Sampling(1.0, min_p=0.01), 2.0)]
CASES = [(40, 97, how, scale) for how in SETTINGS for scale in (0.0, 0.5, 3.0, 12.0)] + [(2, 40_000, *case) for case in LARGE]


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


def test_the_smallest_temperature_does_not_overflow():
    logits = torch.tensor([[1e4, -1e4, 9.999e3]])
    assert draw(logits, words(0, request_digest((1,)), 0, 1), Sampling(1e-6, 0.9)).tolist() == [0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"temperature": -1}, "temperature=-1 is neither 0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": 1, "top_p": 0}, "top_p=0 is outside"),
        ({"temperature": 1, "top_p": 1.1}, "top_p=1.1 is outside"),
        ({"temperature": 1, "top_k": -1}, "top_k=-1 is negative"),
        ({"temperature": 1, "min_p": 1.5}, "min_p=1.5 is outside"),
    ],
)
def test_impossible_settings_are_refused(arguments, text):
    with pytest.raises(ArgumentError, match=text.replace("(", r"\(")):
        Sampling(**arguments)


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
    chance = np.array([[chances(1, request_digest([5, prompt]), j, 50) for j in range(8)] for prompt in range(250)])
    at = Block(torch.arange(50)[None], torch.zeros(1, 50), torch.zeros(1, 10), torch.from_numpy(chance.reshape(-1, 50)))
    taken = policy.takes_over(at).numpy().reshape(chance.shape)

    def deviation(part):  # in standard errors
        return abs(part.mean() - rate) / np.sqrt(rate * (1 - rate) / part.size)

    assert deviation(taken) < 3
    assert max(deviation(taken[:, j]) for j in range(8)) < 3.5
    assert max(deviation(taken[..., t]) for t in range(50)) < 4
    assert deviation(taken[..., 1:][taken[..., :-1]]) < 3

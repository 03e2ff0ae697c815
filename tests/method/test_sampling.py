"""Sampling: the uniform numbers, and inverse CDF against a plain full sort."""

import math

import numpy as np
import pytest
import torch
from helpers import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw, draw_from_head, request_digest, uniforms


def test_uniforms_are_fixed_for_ever():
    """A changed stream would change every published text: these are the first numbers of one request."""
    numbers = uniforms(0, request_digest((1, 2, 3)), 0, 3)
    assert numbers.tolist() == [reference.uniform(0, (1, 2, 3), 0, t) for t in range(3)]
    assert numbers.tolist() == pytest.approx(GOLDEN, abs=0)


GOLDEN = [0.3141010462937869, 0.564177148882612, 0.5261688687987942]


def test_position_does_not_depend_on_how_many_are_asked_for():
    request = request_digest((5,))
    assert uniforms(7, request, 2, 1000)[:10].tolist() == uniforms(7, request, 2, 10).tolist()


@pytest.mark.parametrize(
    "other",
    [
        lambda r: uniforms(1, r, 0, 64),
        lambda r: uniforms(0, r, 1, 64),
        lambda r: uniforms(0, request_digest((1, 2)), 0, 64),
        lambda r: uniforms(0, r, 0, 64, stream="takeover"),
    ],
)
def test_seed_request_sample_and_stream_give_other_numbers(other):
    request = request_digest((1, 2, 3))
    assert not set(uniforms(0, request, 0, 64)) & set(other(request))


def test_uniforms_are_uniform():
    from scipy.stats import kstest

    numbers = np.concatenate([uniforms(0, request_digest((i,)), j, 50) for i in range(40) for j in range(8)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert kstest(numbers, "uniform").pvalue > 0.001


settings_of = st.builds(
    Sampling,
    temperature=st.sampled_from([0.2, 0.6, 1.0, 2.5]),
    top_p=st.sampled_from([0.05, 0.5, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 40]),
)


@settings(max_examples=300)
@given(
    st.lists(st.one_of(st.integers(-8, 8).map(float), st.just(-math.inf)), min_size=2, max_size=48),
    st.floats(0, 1, exclude_max=True),
    settings_of,
    st.integers(1, 6),
)
def test_draw_equals_a_full_sort_whatever_the_head(values, u, sampling, head):
    """Whole-number logits make many ties, which go to the smaller id."""
    if all(v == -math.inf for v in values):
        values[0] = 0.0
    logits = torch.tensor([values, values])
    uniform = torch.tensor([u, u], dtype=torch.float64)
    token, again = draw(logits, uniform, sampling).tolist()
    assert token == again
    assert values[token] > -math.inf
    tokens, known = draw_from_head(logits, uniform, sampling, len(values))
    assert known.all()
    whole = int(tokens[0])
    for size in (head, 2 * head):
        tokens, known = draw_from_head(logits, uniform, sampling, size)
        assert tokens[known].tolist() == [whole] * int(known.sum())
    with np.errstate(all="ignore"):
        slow = {
            reference.draw(np.array(values), min(max(u + e, 0), 1 - 1e-16), sampling.temperature, p, sampling.top_k)
            for e in (-1e-6, 0, 1e-6)
            for p in {min(sampling.top_p * (1 + e), 1.0) for e in (-1e-6, 0, 1e-6)}
        }
    assert {token, whole} <= slow


def test_draw_follows_the_distribution():
    from scipy.stats import chisquare

    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 0.5]])
    u = torch.from_numpy(uniforms(3, request_digest((9,)), 0, 20_000))
    tokens = draw(logits.expand(len(u), -1), u, Sampling(0.7))
    expected = (logits[0] / 0.7).softmax(-1).double().numpy() * len(u)
    assert chisquare(np.bincount(tokens.numpy(), minlength=5), expected * len(u) / expected.sum()).pvalue > 0.001


def test_greedy_is_the_first_maximum():
    assert draw(torch.tensor([[1.0, 3.0, 3.0]]), torch.tensor([0.99]), Sampling()).tolist() == [1]


def test_a_large_vocabulary_is_not_sorted_whole(monkeypatch):
    logits = torch.randn(4, 151_936, generator=torch.Generator().manual_seed(1)) * 6
    sorted_sizes = []
    plain, plain_numpy = torch.Tensor.sort, np.sort
    monkeypatch.setattr(
        torch.Tensor, "sort", lambda self, *a, **k: sorted_sizes.append(self.shape[-1]) or plain(self, *a, **k)
    )
    monkeypatch.setattr(np, "sort", lambda a: sorted_sizes.append(len(a)) or plain_numpy(a))
    uniform = torch.full((4,), 0.9, dtype=torch.float64)
    tokens, known = draw_from_head(logits, uniform, Sampling(0.6, 0.95), 256)
    assert known.all()
    assert draw(logits, uniform, Sampling(0.6, 0.95)).tolist() == tokens.tolist()
    assert len(sorted_sizes) > 2
    assert max(sorted_sizes) < 10_000


@pytest.mark.parametrize("vocab", [5000, 50_000])
@pytest.mark.parametrize("scale", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.6, 0.95), Sampling(1.5, 0.99, 3000)], ids=str)
def test_flat_and_steep_distributions_draw_the_same_on_every_device(scale, sampling, vocab):
    """A CPU selects from sorted or divided values, other devices from sorted heads: the same tokens, however much it takes."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(64, vocab, generator=generator) * scale
    uniform = torch.rand(64, generator=generator, dtype=torch.float64)
    tokens, known = draw_from_head(logits, uniform, sampling, vocab)
    assert known.all()
    assert draw(logits, uniform, sampling).tolist() == tokens.tolist()


@pytest.mark.parametrize("vocab", [3000, 40_000])
@pytest.mark.parametrize("top_p", [1.0, 1 - 1e-16])
def test_no_number_draws_what_is_impossible(vocab, top_p):
    """The last number below 1 may lie behind the mass that rounding leaves: the last token that is possible is drawn."""
    logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(2))
    logits[:, vocab // 2 :] = -torch.inf
    logits[:4, : vocab // 4] = -200.0  # e^-200 is 0 in float32
    tokens = draw(logits, torch.full((8,), 1 - 2.0**-53, dtype=torch.float64), Sampling(1.0, top_p))
    possible = (logits - logits.amax(1, keepdim=True)).exp()
    assert possible.gather(1, tokens[:, None]).min() > 0
    least = possible.masked_fill(possible == 0, 2.0).amin(1)
    assert torch.equal(possible.gather(1, tokens[:, None])[:, 0], least)


@pytest.mark.parametrize("seed", range(40))
def test_a_nucleus_ends_where_two_sums_may_differ_by_a_rounding(seed):
    """Halves add up the mass in another order than a sort does: the draw stays inside of the nucleus all the same."""
    logits = torch.randn(1, 80_000, generator=torch.Generator().manual_seed(seed)) * 5
    ordered = (logits - logits.max()).exp().double().sort(descending=True).values[0].cumsum(0)
    top_p = float((ordered[39_998] + ordered[39_999]) / 2 / ordered[-1])
    token = draw(logits, torch.tensor([1 - 2.0**-53], dtype=torch.float64), Sampling(1.0, top_p))
    rank = int((logits > logits[0, token]).sum())
    assert abs(rank - 39_999) <= 1


def test_flat_distributions_are_divided_before_they_are_sorted(monkeypatch):
    sizes, plain = [], np.sort
    monkeypatch.setattr(np, "sort", lambda a: sizes.append(len(a)) or plain(a))
    logits = torch.randn(4, 151_936, generator=torch.Generator().manual_seed(1))
    draw(logits, torch.linspace(0.1, 0.9, 4, dtype=torch.float64), Sampling(1.0))
    assert len(sizes) == 4
    assert max(sizes) <= 2**14


def test_the_smallest_temperature_does_not_overflow():
    assert draw(torch.tensor([[3e4, 3.1e4, -3e4]]), torch.tensor([0.9]).double(), Sampling(1e-6)).tolist() == [1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0 is outside"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_k": -1}, "top_k=-1 is negative"),
    ],
)
def test_impossible_settings_are_refused(arguments, text):
    with pytest.raises(ArgumentError, match=text):
        Sampling(**arguments)

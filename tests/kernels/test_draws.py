"""The race in Triton, in its interpreter: token for token that of the CPU."""

from dataclasses import astuple

import helpers.interpreter  # noqa: F401 (makes the interpreter fast)
import numpy as np
import pytest
import torch

from lm_eval_takeover.kernels import draws
from lm_eval_takeover.kernels.operations import Rules
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw_on_cpu, drawing, request_digest, stream_key, words

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of weights that are 0
CPU = torch.device("cpu")
SETTINGS = [
    Sampling(), Sampling(1.0), Sampling(0.6, 0.95), Sampling(0.3, 1.0, 1), Sampling(2.0, 0.5, 5), Sampling(0.7, 1.0, 5),
    Sampling(1e-6, 0.9), Sampling(1.0, 0.1), Sampling(1.0, 1e-9), Sampling(2.0, 0.99, 97), Sampling(1.0, 0.9, 5000),
    Sampling(1.5, min_p=0.1), Sampling(0.8, 0.9, min_p=0.3), Sampling(1.3, 0.95, 20, 0.05), Sampling(1.0, min_p=1.0),
]  # fmt: skip


def place_rules(*samplings):
    return Rules.of([astuple(one) for one in samplings], CPU)


def at_random(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def as_tensor(at):
    return torch.from_numpy(at.view(np.int64))


def rough_logits(rows, vocab, seed=1):
    """Of all kinds: flat, sharp and certain rows, equal tokens, tokens that are ruled out, a nucleus of one token."""
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    logits *= torch.tensor([0.0, 0.5, 3.0, 12.0]).repeat(rows)[:rows, None]
    logits[:, 0] = logits[:, -1]
    logits[::5, vocab // 3] = -torch.inf
    logits[1::7, : vocab // 2] = -torch.inf
    logits[2::11, vocab // 4] = 60.0
    return logits


def test_the_words_of_a_device_are_those_of_numpys_philox():
    keys, positions, expected = [], [], []
    for sample in range(3):
        for t in (0, 1, 2, 3, 4, 7, 1000, 40_001):
            keys.append(stream_key(5, request_digest((1, 2)), sample).view(np.int64))
            positions.append(t)
            expected.append(words(5, request_digest((1, 2)), sample, t + 1)[t])
    found = draws.compute_words(torch.tensor(np.array(keys)), torch.tensor(positions))
    assert found.numpy().view(np.uint64).tolist() == expected


@pytest.mark.parametrize(
    ("how", "dtype"), [*((how, torch.float32) for how in SETTINGS), *((how, torch.bfloat16) for how in SETTINGS[:5])], ids=str
)
def test_every_draw_is_that_of_the_cpu(how, dtype):
    logits, at = rough_logits(320, 97).to(dtype), at_random(320)
    with drawing():
        expected, masses = draw_on_cpu(logits.float().numpy(), at, how)
    tokens, found = draws.draw(logits[:, None], as_tensor(at), *place_rules(how), None, rows=512, tile=64)
    assert tokens.tolist() == expected.tolist()
    np.testing.assert_allclose(found, masses, rtol=1e-6)


@pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 1000])
def test_vocabularies_of_any_size(vocab):
    for how in (Sampling(0.9, 0.8), Sampling(0.9, 0.8, 9)):
        logits, at = rough_logits(16, vocab), at_random(16, seed=vocab)
        with drawing():
            expected = draw_on_cpu(logits.numpy(), at, how)[0]
        tokens, _ = draws.draw(
            logits[:, None], as_tensor(at), *place_rules(how), None, rows=16, tile=64 if vocab < 999 else 256
        )
        assert tokens.tolist() == expected.tolist()


@pytest.mark.parametrize("judged", [1, 3])
def test_a_race_goes_on_until_its_winner_is_kept(judged):
    """A small nucleus refuses many winners: the passes decide some of them, the last program the rest."""
    logits, at = rough_logits(200, 150), at_random(200, seed=3)
    with drawing():
        expected = draw_on_cpu(logits.numpy(), at, Sampling(1.5, 0.02))[0]
    rules = place_rules(Sampling(1.5, 0.02))
    tokens, _ = draws.draw(logits[:, None], as_tensor(at), *rules, None, rows=256, tile=64, judged=judged)
    assert tokens.tolist() == expected.tolist()


def test_each_row_has_its_own_rule_and_row_of_logits():
    """Rows of a padded vocabulary are picked out without a copy, some twice, some never; who asks for nothing gets 0."""
    logits, at = rough_logits(40, 120)[:, :97], at_random(33)
    hows = [SETTINGS[i % len(SETTINGS)] for i in range(33)]
    asked = torch.arange(33) * 7 % 40
    asked[5] = asked[20] = -1
    tokens, masses = draws.draw(logits[:, None], as_tensor(at), *place_rules(*hows), asked, rows=16, tile=32)
    for i, how in enumerate(hows):
        if asked[i] < 0:
            assert (tokens[i], masses[i]) == (0, 1)
            continue
        with drawing():
            assert tokens[i] == draw_on_cpu(logits[asked[i]][None].numpy(), at[i : i + 1], how)[0][0]


@pytest.mark.parametrize("how", SETTINGS[:6], ids=str)  # greedy, plain, by top-p, by top-k, and by both
def test_logits_that_are_no_distribution_end_in_some_token_and_are_told(how):
    logits = torch.zeros(4, 97)
    logits[0, 5], logits[1, 5], logits[2] = torch.nan, torch.inf, -torch.inf
    tokens, masses = draws.draw(logits[:, None], as_tensor(at_random(4)), *place_rules(how), None, rows=4, tile=32)
    assert ((tokens >= 0) & (tokens < 97)).all()
    assert masses.isnan().tolist() == [True, True, True, False]  # as on a CPU
    with drawing():
        assert np.isnan(draw_on_cpu(logits.numpy(), at_random(4), how)[1]).tolist() == [True, True, True, False]


def test_no_rows_are_no_launch():
    tokens, masses = draws.draw(torch.zeros(0, 1, 9), torch.zeros(0, dtype=torch.int64), *place_rules(Sampling(1.0)), None)
    assert tokens.shape == masses.shape == (0,)

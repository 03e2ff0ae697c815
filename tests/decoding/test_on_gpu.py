"""On a GPU, where there is one: the texts of the CPU, draws of the kernels, and no wait that nobody counts."""

import pytest
import torch
from helpers.pairs import POLICIES, SAMPLED

from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.method.sampling import draw_rows
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def gpu_pair():
    return Pair(*(Member(role, str(path), device="cuda", dtype=torch.float32) for role, path in DEMO.items()))


@pytest.mark.parametrize("name", ["disagreement", "guide", "random"])
def test_blocks_write_on_a_gpu_what_lockstep_writes_there(gpu_pair, prompts, name):
    requests = [Request(prompt, j, 60, SAMPLED) for prompt in prompts for j in range(2)]
    expected = dict(lockstep.generate(gpu_pair, POLICIES[name], requests, batch_size=4))
    made = dict(blockwise.generate(gpu_pair, POLICIES[name], requests, batch_size=4))
    assert {i: g.tokens for i, g in made.items()} == {i: g.tokens for i, g in expected.items()}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.6, 0.95), Sampling(1.0), Sampling(0.7, 0.8, 20)], ids=str)
@pytest.mark.parametrize("vocab", [512, 151_936])
def test_a_gpu_draws_what_a_cpu_draws(sampling, vocab):
    generator = torch.Generator().manual_seed(0)
    rows = 2**25 // vocab
    logits = 3 * torch.randn(rows, vocab, generator=generator)
    words = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
    expected = draw_rows(logits, words, sampling)[0]
    drawn = draw_rows(logits.cuda(), words.cuda(), sampling)[0].cpu()
    assert int((drawn != expected).sum()) <= rows // 10_000 + 1  # near ties


def test_logits_beyond_2_to_the_31_entries_are_addressed():
    rows, vocab = 2**31 // 151_936 + 8, 151_936
    logits = torch.zeros(rows, vocab, dtype=torch.bfloat16, device="cuda")
    logits[-8:] = 3 * torch.randn(8, vocab, device="cuda")
    words = torch.arange(rows, device="cuda") * 2**33 + 5
    drawn = draw_rows(logits, words, Sampling(0.6, 0.95))[0][-8:].cpu()
    expected = draw_rows(logits[-8:].float().cpu(), words[-8:].cpu(), Sampling(0.6, 0.95))[0]
    assert int((drawn != expected).sum()) <= 1  # a near tie

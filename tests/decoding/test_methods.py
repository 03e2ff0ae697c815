"""The methods of other papers: lockstep equals an independent replay, and blocks, batches and restarts equal lockstep."""

from dataclasses import replace

import pytest
import torch
from helpers.pairs import GREEDY, METHODS, SAMPLED
from helpers.reference import replay_request
from scipy.stats import chisquare

from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.decoding.teacher_forcing import force
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.policies import ALONE, Ensemble, Lossy, Segment
from lm_eval_takeover.method.policy import Block
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.method.sampling import draw


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("name", METHODS)
def test_every_engine_writes_what_the_replay_writes(demo_pair, small_pair, prompts, name, direction):
    pair = demo_pair if "sentence" in name else small_pair  # whose texts have none
    policy = replace(METHODS[name], direction=direction)
    requests = [Request(prompts[0], 0, 26, GREEDY), *(Request(p, j, 32, SAMPLED) for p in prompts[1:3] for j in (0, 1))]
    expected = dict(lockstep.generate(pair, policy, requests, seed=3, batch_size=8, traced=True))
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
    (whole,) = (one for _, one in lockstep.generate(demo_pair, METHODS[name], [request]))
    for count in (1, 17, 18, 20, 33):
        begun = Generation(whole.tokens[:count], whole.taken_over[:count], whole.scores[:count])
        ((_, again),) = lockstep.generate(demo_pair, METHODS[name], [request], begun=[begun])
        assert (again.tokens, again.taken_over) == (whole.tokens, whole.taken_over)


@pytest.mark.parametrize("residual", [True, False])
def test_the_residual_at_leniency_1_is_the_donors_own_law(residual):
    """Speculative sampling: of many draws, as many of each token as the donor gives; its whole distribution gives others."""
    generator = torch.Generator().manual_seed(1)
    rows, vocab = 40_000, 12
    host, donor = (torch.randn(vocab, generator=generator).mul(0.7).expand(rows, vocab) for _ in range(2))
    words = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
    policy, sampling = Lossy(residual=residual), Sampling(1.0)
    drawn = draw(host, words, sampling)
    scores, chance = policy.scores(host, donor, drawn)[:, None], torch.rand(rows, 1, generator=generator)
    taken = policy.decide(Block(torch.zeros_like(drawn)[:, None], scores, scores[:, :0], chance=chance))[:, 0]
    emitted = draw(policy.choose_logits(taken, host, donor), policy.choose_words(words, taken), sampling)
    expected = donor[0].double().softmax(-1) * rows
    fits = chisquare(emitted.bincount(minlength=vocab), expected).pvalue > 1e-3
    assert 0.2 < taken.float().mean() < 0.9
    assert fits == residual
    assert bool((emitted[taken] != drawn[taken]).all()) == residual


@pytest.mark.parametrize("name", ["log_ratio", "segment", "segment to the end of a sentence", "ensemble"])
def test_a_text_that_stands_is_met_as_it_was_written(demo_pair, prompts, name):
    """Greedy texts of the host: every token is its draw, and a mix that agrees is no takeover."""
    request = Request(prompts[0], 0, 30, GREEDY)
    (written,) = (one for _, one in lockstep.generate(demo_pair, ALONE["base"](), [request]))
    (forced,) = force(demo_pair, METHODS[name], [request.prompt], [written.tokens])
    if isinstance(METHODS[name], Ensemble):
        assert not forced.taken_over.any()
    else:
        first = next(t for t, taken in enumerate(forced.taken_over) if taken)
        (guided,) = (one for _, one in lockstep.generate(demo_pair, METHODS[name], [request]))
        assert guided.taken_over[: first + 1] == forced.taken_over.tolist()[: first + 1]
        if isinstance(METHODS[name], Segment):
            assert forced.taken_over[first : first + 2].all()

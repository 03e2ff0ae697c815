"""The methods of other papers: lockstep equals an independent replay, and blocks, batches and restarts equal lockstep."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.pairs import GREEDY, METHODS, SAMPLED
from helpers.reference import all_logits, log_softmax, replay_request
from scipy.stats import chisquare

from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.decoding.teacher_forcing import force
from lm_eval_takeover.lab.methods import Ensemble, Lossy, Segment
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.policies import ALONE, Disagreement, Early, Random
from lm_eval_takeover.method.request import Request, Sampling

REVERSED = [(name, "reverse") for name in ("surprise", "segment", "lossy", "ensemble")]


@pytest.mark.parametrize(("name", "direction"), [*((name, "forward") for name in METHODS), *REVERSED])
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
    made = [one for _, one in lockstep.generate(small_pair, policy, requests, batch_size=1000)]
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

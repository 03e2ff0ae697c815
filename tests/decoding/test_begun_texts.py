"""A text that is continued from any of its tokens ends as it did, by every engine and policy."""

from dataclasses import replace

import pytest
from helpers.pairs import GREEDY, POLICIES, SAMPLED
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.method.request import Request

ENGINES = {
    "lockstep": lambda *args: lockstep.generate(*args, batch_size=3),
    "blocks": lambda *args: blockwise.generate(*args, batch_size=3),
}


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "early"])
@settings(max_examples=3)
@given(share=st.floats(0, 0.99), sampled=st.booleans())
def test_goes_on_as_it_was_written(rough_pair, prompts, name, share, sampled):
    policy = POLICIES[name]
    asked = [Request(p, j, 14, SAMPLED if sampled else GREEDY) for p in prompts[:2] for j in (0, 1)]
    whole = dict(lockstep.generate(rough_pair, policy, asked, batch_size=4))
    begun = []
    for i, request in enumerate(asked):
        place = int(share * len(whole[i].tokens))
        scores = tuple(whole[i].scores[max(0, place - policy.window) : place])
        begun.append(replace(request, begun=tuple(whole[i].tokens[:place]), begun_scores=scores))
    for engine, generate in ENGINES.items():
        for i, generation in generate(rough_pair, policy, begun):
            place = len(begun[i].begun)
            assert generation.tokens == whole[i].tokens, (engine, place)
            assert generation.taken_over[place:] == whole[i].taken_over[place:], (engine, place)
            assert generation.scores[place:] == pytest.approx(whole[i].scores[place:], abs=1e-4, nan_ok=True)

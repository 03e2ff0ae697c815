"""What the schedule decides, against the sums that it stands for."""

import pytest

from lm_eval_takeover.decoding import blockwise
from lm_eval_takeover.decoding.schedule import PassCost, Schedule
from lm_eval_takeover.method.policies import GuideAlone
from lm_eval_takeover.method.request import Request, Sampling


@pytest.mark.parametrize(
    ("per_token", "rows", "pay"), [(0.01, 1, True), (0.01, 64, True), (1.0, 64, False), (0.1, 64, False)]
)
def test_the_guide_is_drafted_for_where_some_block_beats_it_alone(per_token, rows, pay):
    """A cheap drafter, and a guide whose tokens cost from a hundredth of a pass to a whole one."""
    drafter, donor = PassCost(0.1, per_token / 10), PassCost(1.0, per_token)
    best = max(
        sum(0.95**place for place in range(drafted + 1))
        / (drafted * drafter.fixed + (drafted + 1) * rows * drafter.per_token + donor.seconds(rows * (drafted + 1)))
        for drafted in range(1, 65)
    )
    assert (best > 1 / donor.seconds(rows)) == pay
    assert Schedule(drafter, donor, None, bonus=True).drafts_pay(rows) == pay


def test_a_guide_whose_passes_are_full_is_not_drafted_for(demo_pair, prompts):
    """32 rows of the demo pair: as many tokens in a pass as its arithmetic takes; the text is the same."""
    requests = [Request(prompts[0], j, 4, Sampling(0.6, 0.95)) for j in range(32)]
    alone = dict(blockwise.generate(demo_pair, GuideAlone(), requests, batch_size=32))
    assert not any(one.base_passes for one in alone.values())
    drafted = dict(blockwise.generate(demo_pair, GuideAlone(), requests, batch_size=32, block_size=3))
    assert all(one.base_passes for one in drafted.values())
    assert all(alone[i].tokens == drafted[i].tokens for i in range(32))

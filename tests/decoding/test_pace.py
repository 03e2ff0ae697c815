"""How long a draft is: costs are measured, takeovers foretold, and a block of one is taken where longer ones do not pay."""

import math

import pytest

from lm_eval_takeover.decoding.pace import LONGEST, Foresight, Pace, PassCosts


def costs(start, slope, rows=1, noise=0.0):
    made = PassCosts()
    for i in range(60):
        k = 1 + i % 12
        made.took(rows, k, start + slope * k + noise * math.sin(i))
    return made


def drafted(pace, entropy, rows=1, blocks=30, most=10**6):
    """How many tokens of this host entropy the last of some blocks drafts, where nothing ever fires."""
    for _ in range(blocks):
        limit, survival, count = min(pace.limit(rows, 100), most), 1.0, 0
        while True:
            count += 1
            survival *= 1 - pace.foresight.chance(entropy)
            if count == limit or rows * survival <= pace.least_survival(rows, rows, count):
                break
        seconds = count * pace.host.single(rows) + pace.donor.single(rows) + pace.donor.one_more(rows) * (count - 1)
        pace.block_ended(rows, [entropy] * count, [False] * count, rows * count, seconds)
    return count


def test_costs_are_those_that_were_measured():
    made = costs(5.0, 0.5, noise=0.05)
    assert made.single(1) == pytest.approx(5.5, abs=0.2)
    assert made.one_more(1) == pytest.approx(0.5, abs=0.05)
    assert made.known(1)
    assert not made.known(8)
    assert made.one_more(8) == 8 * made.one_more(1)  # until it is measured
    made.took(8, 4, 7.0)
    assert not made.known(8)
    assert PassCosts().single(1) == PassCosts().one_more(1) == 0.0


def test_a_pass_that_was_held_up_says_little():
    made = costs(5.0, 0.5)
    made.took(1, 1, 500.0)
    assert made.single(1) < 20


def test_an_entropy_foretells_what_it_foretold():
    foresight = Foresight()
    foresight.learn([0.01] * 400 + [1.1] * 20, [False] * 400 + [True] * 18 + [False] * 2)
    assert foresight.chance(0.01) < 0.01
    assert foresight.chance(1.15) > 0.7
    assert foresight.chance(0.0) == foresight.chance(0.005)
    assert 0 < foresight.chance(2.5) < 0.1  # never seen: the overall rate


def test_drafts_are_long_where_passes_over_many_tokens_are_cheap_and_one_where_they_are_not():
    cheap = Pace(costs(0.0, 1.0), costs(20.0, 0.1), Foresight())
    dear = Pace(costs(0.0, 1.0), costs(0.0, 10.0), Foresight())
    for pace in (cheap, dear):
        pace.foresight.learn([0.5] * 1000, [i % 20 == 0 for i in range(1000)])
    assert drafted(cheap, 0.5) > 8
    assert drafted(dear, 0.5) == 1


def test_costs_that_were_measured_wrongly_do_not_stay():
    """A guide that was held up while it read blocks seems dear; blocks of one alone would never show that it is not."""
    pace = Pace(costs(0.0, 1.0), costs(0.0, 100.0), Foresight())
    pace.foresight.learn([0.5] * 1000, [i % 20 == 0 for i in range(1000)])
    assert drafted(pace, 0.5) == 1
    lengths = []
    for _ in range(1500):
        length = drafted(pace, 0.5, blocks=1)
        pace.donor.took(1, length, 20.0 + 0.1 * length)
        lengths.append(length)
    assert lengths[:10] == [1] * 10
    assert lengths[-1] > 8


def test_a_draft_ends_where_a_takeover_is_near():
    pace = Pace(costs(0.0, 1.0), costs(20.0, 0.1), Foresight())
    pace.foresight.learn([0.01] * 1000 + [1.1] * 50, [False] * 1000 + [True] * 50)
    assert drafted(pace, 0.01) > 30
    survival = 1 - pace.foresight.chance(1.1)
    assert survival < pace.least_survival(1, 1, 5)


def test_lengths_are_learnt_fixed_or_bounded_by_memory():
    unknown = Pace(PassCosts(), PassCosts(), Foresight())
    assert not unknown.chooses(1)
    limits = []
    for _ in range(6):
        limits.append(unknown.limit(1, 100))
        unknown.block_ended(1, [0.1], [False], 1, 1.0)
    assert limits == [1, 2, 4, 8, 16, 8]
    assert unknown.chooses(1)
    assert unknown.limit(1, 100) == LONGEST
    assert unknown.limit(32, 151_936) == 13
    assert unknown.limit(10_000, 151_936) == 1
    assert Pace(costs(1, 1), costs(1, 1), Foresight(), 7).limit(1, 100) == 7
    assert not Pace(costs(1, 1), costs(1, 1), Foresight(), 7).chooses(1)
    assert Pace(costs(1, 1), costs(1, 1), Foresight()).chooses(1)  # a later run of the same models learns nothing anew

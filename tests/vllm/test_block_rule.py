"""The rule of `block_size=auto` for vLLM: how many tokens are drafted, by the number of requests."""

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lm_eval_takeover.decoding.costs import MACHINES, PassCost, StepCosts
from lm_eval_takeover.vllm import block_rule
from lm_eval_takeover.vllm.block_rule import LAUNCH, LONGEST, choose_drafts, choose_lengths


def cost(machine, parameters, layers, *, launch=LAUNCH["cuda"][0], column_bytes=100_000):
    kind = replace(MACHINES[machine], launch=launch)
    if not machine.startswith("cpu"):
        kind = replace(kind, cache=kind.weights, several=0.0)
    return PassCost.on(kind, parameters=parameters, layers=layers, itemsize=2, column_bytes=column_bytes, vocab=150_000)


def pair_of(machine="H200", base=6e8, guide=7.6e9, ends=0.05, columns=1000, bonus=False, launch=LAUNCH["cuda"][1]):
    drafter, fused = (cost(machine, base, 28, launch=one) for one in (launch, LAUNCH["cuda"][0]))
    return StepCosts(drafter, cost(machine, guide, 36), None if bonus else fused, ends, columns, bonus)


pairs = st.builds(
    pair_of,
    machine=st.sampled_from(sorted(MACHINES)),
    base=st.floats(1e7, 8e9),
    guide=st.floats(1e8, 3e10),
    ends=st.floats(0.01, 1),
    columns=st.integers(0, 20_000),
    bonus=st.booleans(),
    launch=st.sampled_from(LAUNCH["cuda"]),
)


def time_slowly(costs, drafted, rows):
    """Seconds of a token of each request, pass by pass and position by position."""
    columns, seconds, tokens = rows * costs.columns, 0.0, 0.0
    for number in range(max(drafted, 1)):
        read = rows if number or not drafted else rows * (drafted + 2)
        seconds += costs.drafter.seconds(read, columns) + costs.drafter.draw + costs.drafter.per_draw * rows
    seconds += costs.target.seconds(rows * (drafted + 1), columns) + costs.target.draw
    stands = 1.0
    for _ in range(drafted + 1 if costs.bonus else max(drafted, 1)):
        seconds += costs.target.per_draw * rows
        tokens += stands
        stands *= 1 - costs.ends
    return seconds / tokens


@settings(max_examples=25)
@example(pair_of(columns=0, ends=0.1, bonus=True), 1024)  # drafts gain with one request, and lose with a crowd
@given(pairs, st.integers(1, 60))
def test_three_lengths_are_drafted_where_they_gain_with_one_request_and_lose_little_with_any(costs, most):
    """Each is the best of the three that is no longer than with fewer requests."""
    times = [[time_slowly(costs, drafted, rows) for drafted in range(LONGEST + 1)] for rows in range(1, most + 1)]
    best = [own.index(min(own)) for own in times]
    lengths, among = choose_lengths(costs, most), {best[0], best[round(most**0.5) - 1], best[-1]}
    assert lengths[0] == best[0]
    for own, length in zip(times, lengths, strict=True):
        assert length in among and own[length] <= min(own[other] for other in among) * (1 + 1e-9)
        among = {other for other in among if other <= length}
    shares = [times[rows - 1][length] / costs.fused_seconds(rows) for rows, length in enumerate(lengths, 1)]
    pays = lengths[0] > 1 and shares[0] <= block_rule.LEAST_GAIN and max(shares) <= block_rule.MOST_LOSS
    choice = choose_drafts(costs, most)
    assert [length for start, end, length in choice.ranges for _ in range(start, end + 1)] == (lengths if pays else [])
    assert choice.longest == (lengths[0] if pays else 1)

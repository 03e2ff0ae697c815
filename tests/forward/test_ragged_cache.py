"""The ragged cache copies rows by their lengths, and refuses models whose rows cannot have lengths of their own."""

import pytest
import torch
from helpers.pairs import save_random_model

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.forward_pass import ForwardPass
from lm_eval_takeover.forward.ragged_cache import Plan, RaggedCache
from lm_eval_takeover.pair.member import Member


def test_a_cache_copies_what_was_read_and_nothing_else():
    cache, other = RaggedCache(1, 3), RaggedCache(1, 2)
    for one, lengths in ((cache, [0, 0, 0]), (other, [0, 0])):
        one.plan = Plan(lengths, 4, range(len(lengths)), torch.device("cpu"))
        states = torch.arange(len(lengths) * 4.0).view(len(lengths), 1, 4, 1) + 100 * len(lengths)
        one.layers[0].update(states, states)
    cache.copy_row(other, 1, 2, 3)
    assert cache.layers[0].buffers[0][2, :4, 0, 0].tolist() == [204.0, 205.0, 206.0, 311.0]


def test_layers_that_keep_a_state_are_refused_by_name(tmp_path):
    base = save_random_model(tmp_path / "mamba", vocab_size=544, seed=5, kind="mamba", state_size=4)
    member = Member("base", str(base))
    with pytest.raises(ArgumentError, match=r"base='mamba': .* keep a state that cannot be rolled back; use block_s"):
        ForwardPass(member)


@pytest.mark.parametrize(
    ("slots", "lengths", "contiguous", "start"),
    [((0, 1, 2), (4, 4, 4), True, 4), ((0, 1, 2), (4, 0, 2), True, None), ((2, 0), (3, 3), False, None)],
    ids=["aligned", "ragged", "gathered"],
)
def test_every_layout_writes_each_row_behind_its_length_and_returns_its_columns(slots, lengths, contiguous, start):
    cache = RaggedCache(1, 3)
    cache.plan = Plan((0, 0, 0), 4, range(3), torch.device("cpu"))
    before = torch.arange(12.0).view(3, 1, 4, 1)
    cache.layers[0].update(before, before)
    plan = cache.plan = Plan(lengths, 2, slots, torch.device("cpu"))
    assert (plan.is_contiguous, plan.aligned_start) == (contiguous, start)
    new = 100 + torch.arange(2.0 * len(slots)).view(len(slots), 1, 2, 1)
    keys, values = cache.layers[0].update(new, -new)
    assert keys.shape == values.shape == (len(slots), 1, max(lengths) + 2, 1)
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        read = [*before[slot, 0, :length, 0].tolist(), *new[row, 0, :, 0].tolist()]
        assert keys[row, 0, : length + 2, 0].tolist() == read
        assert values[row, 0, length : length + 2, 0].tolist() == (-new[row, 0, :, 0]).tolist()
        assert plan.positions[row].tolist() == [length, length + 1]


def test_columns_double_and_no_row_gets_more_than_the_longest_needs():
    """Few copies on the way to a long text, each of which drops the graphs; 16,384 columns for 16,384 tokens."""
    cache = RaggedCache(1, 2, most_columns=16_390)
    cache.plan = Plan([0, 0], 1, range(2), torch.device("cpu"))
    states = torch.zeros(2, 1, 1, 4)
    cache.layers[0].update(states, states)
    assert cache.columns == 256
    for columns, allocated in ((256, 256), (257, 512), (1500, 1536), (1537, 3072), (16_384, 16_384), (16_385, 16_640)):
        cache.reserve(columns)
        assert cache.columns == allocated

"""How the ragged cache grows."""

import torch

from lm_eval_takeover.forward.ragged_cache import Plan, RaggedCache


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

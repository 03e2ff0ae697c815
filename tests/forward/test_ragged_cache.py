"""How the ragged cache grows, whose rows cannot have lengths of their own, and how long a draft may be."""

import pytest
import torch
from helpers.pairs import save_random_model

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.forward_pass import ForwardPass
from lm_eval_takeover.forward.ragged_cache import LONGEST, Plan, RaggedCache, longest_draft
from lm_eval_takeover.pair.member import Member


def test_layers_that_keep_a_state_are_refused_by_name(tmp_path):
    base = save_random_model(tmp_path / "mamba", vocab_size=544, seed=5, kind="mamba", state_size=4)
    member = Member("base", str(base))
    with pytest.raises(ArgumentError, match=r"base='mamba': .* keep a state that cannot be rolled back; use block_s"):
        ForwardPass(member)


def test_columns_double_and_no_row_gets_more_than_the_longest_needs():
    """Few copies on the way to a long text, each of which drops the graphs; 16,384 columns for 16,384 tokens."""
    cache = RaggedCache(1, 2, most_columns=16_390)
    cache.plan = Plan([0, 0], 1, range(2), torch.device("cpu"))
    states = torch.zeros(2, 1, 1, 4)
    cache.layers[0].update(states, states)
    assert cache.columns == 128
    for columns, allocated in ((129, 256), (257, 512), (1500, 1536), (1537, 3072), (16_384, 16_384), (16_385, 16_512)):
        cache.reserve(columns)
        assert cache.columns == allocated


def test_logits_of_many_rows_or_tokens_shorten_a_draft(machine):
    cpu = torch.device("cpu")
    machine(total=2**30)
    assert longest_draft(1, 512, cpu) == LONGEST
    assert longest_draft(8, 151_936, cpu) == 55  # 2^26 logits, whatever the memory
    assert longest_draft(10**6, 151_936, cpu) == 1
    machine(total=141 * 10**9)
    assert longest_draft(128, 151_936, cpu) == 28  # not 3: the logits of 128 rows take 1/64 of a large memory

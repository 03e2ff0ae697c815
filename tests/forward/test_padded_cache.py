"""The growing cache holds what transformers' own holds, through appends and selections."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig, MistralConfig

from lm_eval_takeover.forward.padded_cache import GrowingLayer, create_cache, select_rows

CONFIG = LlamaConfig(num_hidden_layers=2, num_attention_heads=2, hidden_size=8)


def append(caches, rows, new, generator):
    for layer in range(2):
        keys, values = (torch.rand(rows, 2, new, 4, generator=generator) for _ in range(2))
        given = [cache.update(keys, values, layer) for cache in caches]
        for one, other in zip(*given, strict=True):
            assert torch.equal(one, other)


@settings(max_examples=50)
@given(
    st.integers(1, 5),
    st.lists(st.one_of(st.integers(1, 90), st.lists(st.integers(0, 4), min_size=1, max_size=6)), max_size=8),
)
def test_equals_the_dynamic_cache(rows, steps):
    generator = torch.Generator().manual_seed(0)
    ours, theirs = create_cache(CONFIG), DynamicCache(config=CONFIG)
    append((ours, theirs), rows, 3, generator)
    for step in steps:
        if isinstance(step, int):
            append((ours, theirs), rows, step, generator)
        else:
            index = torch.tensor([i % rows for i in step])
            rows = len(step)
            ours = select_rows(ours, index)
            theirs.batch_select_indices(index)
    assert ours.get_seq_length() == theirs.get_seq_length()


def test_a_step_does_not_copy_what_is_held():
    cache = create_cache(CONFIG)
    append((cache, create_cache(CONFIG)), 2, 5, torch.Generator())
    where = cache.layers[0].keys.data_ptr()
    for _ in range(20):
        cache.update(torch.zeros(2, 2, 1, 4), torch.zeros(2, 2, 1, 4), 0)
    assert cache.layers[0].keys.data_ptr() == where


def test_sliding_layers_stay_transformers_own():
    cache = create_cache(MistralConfig(num_hidden_layers=2, sliding_window=8))
    assert not any(isinstance(layer, GrowingLayer) for layer in cache.layers)

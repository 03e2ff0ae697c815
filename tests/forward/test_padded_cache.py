"""The growing cache is for layers of full attention, and grows in steps."""

import torch
from transformers import LlamaConfig, MistralConfig

from lm_eval_takeover.forward.padded_cache import GrowingLayer, create_cache


def test_a_step_does_not_copy_what_is_held():
    cache = create_cache(LlamaConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=8))
    cache.update(torch.zeros(2, 2, 5, 4), torch.zeros(2, 2, 5, 4), 0)
    where = cache.layers[0].keys.data_ptr()
    for _ in range(20):
        cache.update(torch.zeros(2, 2, 1, 4), torch.zeros(2, 2, 1, 4), 0)
    assert cache.layers[0].keys.data_ptr() == where


def test_sliding_layers_stay_transformers_own():
    cache = create_cache(MistralConfig(num_hidden_layers=2, sliding_window=8))
    assert not any(isinstance(layer, GrowingLayer) for layer in cache.layers)

"""Modelled costs, and when a guide that writes alone is drafted for."""

import re
from dataclasses import replace

import pytest
import torch
from architectures import save_model
from helpers.pairs import save_random_model, texts

from lm_eval_takeover.decoding import blockwise
from lm_eval_takeover.decoding.costs import MACHINES, PassCost, Schedule, count_column_bytes, find_machine
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.method.policies import GuideAlone
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair


def test_a_guide_is_drafted_for_by_a_length_that_is_given_or_where_drafts_are_faster(demo_pair, prompts):
    """Of the demo pair: one row, where a block costs the guide about one pass. The text is the same."""
    base, guide = (PassCost.of(prepare_pass(member)) for member in demo_pair.members)
    assert [rows for rows in (1, 2, 8, 400) if Schedule(base, guide, None, bonus=True).drafts_pay(rows)] == [1]
    requests = [Request(prompts[0], j, 4, Sampling(0.6, 0.95)) for j in range(32)]
    alone = dict(blockwise.generate(demo_pair, GuideAlone(), requests, batch_size=32))
    drafted = dict(blockwise.generate(demo_pair, GuideAlone(), requests, batch_size=32, block_size=3))
    assert all(drafted[i].base_passes > alone[i].base_passes == 0 for i in range(32)) and texts(alone) == texts(drafted)


def test_a_guide_that_its_base_seldom_foretells_soon_goes_on_alone(demo_pair, prompts, tmp_path):
    """Drafts would pay if they stood; of a base with other weights few do. The text stays, and what is left is not drafted."""
    other = save_random_model(tmp_path / "other", vocab_size=512, seed=3, layers=24)
    pair = Pair(demo_pair.base, Member("guide", str(other)))
    requests = [Request(prompt, j, 80, Sampling(1.0)) for prompt in prompts[:2] for j in range(2)]
    alone = dict(blockwise.generate(Pair(None, pair.guide), GuideAlone(), requests))
    made = dict(blockwise.generate(pair, GuideAlone(), requests))
    assert texts(made) == texts(alone)
    assert 0 < sum(generation.base_passes for generation in made.values()) < 60
    assert [generation.base_passes for generation in made.values()][-2:] == [0, 0]


@pytest.mark.parametrize(("name", "machine"), [("NVIDIA H200 141GB HBM3e", "H200"), ("NVIDIA L40S", "H100")])
def test_a_gpu_is_found_by_its_name(monkeypatch, name, machine):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    assert find_machine(torch.device("cuda", 0), torch.bfloat16) is MACHINES[machine]


@pytest.mark.parametrize("kind", ["gemma4-e2b", "gemma4-31b", "ministral3", "qwen3.5", "bamba"])
def test_costs_follow_from_the_layers(tmp_path, kind):
    """Heads that differ by layer, layers that keep a state or share keys and values. Towers of images and tables are not read."""
    model = Member("base", str(save_model(tmp_path, kind))).model
    ids = torch.ones(1, 1, dtype=torch.long)
    layers = model(input_ids=ids, attention_mask=ids, use_cache=True).past_key_values.layers
    held = [states for layer in layers for states in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    assert count_column_bytes(model.config, 4) == 4 * sum(states.numel() for states in held if isinstance(states, torch.Tensor))
    unread = re.compile("vision|projector|audio|tokens_per_layer")
    read = sum(weight.numel() for name, weight in model.named_parameters() if not unread.search(name))
    cost = PassCost.of_model(model, replace(MACHINES["cpu"], arithmetic=2.0, token=0.0), padded=True)
    assert cost.per_token == read

"""Modelled costs, when a guide that writes alone is drafted for, how many rows fit, and what goes on while memory is short."""

import re
from dataclasses import replace

import pytest
import torch
from architectures import save_model
from helpers.pairs import POLICIES, SAMPLED, look_before_passes, save_random_model, texts
from lm_eval.api.instance import Instance

from lm_eval_takeover.decoding import blockwise, engine
from lm_eval_takeover.decoding.costs import MACHINES, PassCost, Schedule, count_column_bytes
from lm_eval_takeover.decoding.engine import cache_bytes, rows_that_fit
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.method.policies import GuideAlone
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.model import GuidedTakeover
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


def test_log_likelihoods_go_on_with_fewer_texts_where_memory_runs_out(monkeypatch, caplog):
    lm = GuidedTakeover(tau=1.0, batch_size=16)
    pairs = [("Problem: how far?", f" {number} steps") for number in range(10)]
    asked = [Instance("loglikelihood", {}, pair, 0, metadata=("t", 0, 1)) for pair in pairs]
    expected = lm.loglikelihood(asked, disable_tqdm=True)

    def look(role, ids, reads_prompt):
        if len(ids) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    look_before_passes(monkeypatch, look)
    found = lm.loglikelihood(asked, disable_tqdm=True)
    assert found == [(pytest.approx(log_prob, abs=1e-4), greedy) for log_prob, greedy in expected]
    assert "continuing with batch size 2" in caplog.text


def test_one_command_repeats_itself_in_bfloat16(prompts):
    """What goes into a pass follows from tokens, settings and shapes; a clock would let the load of the machine decide."""
    pair = Pair(*(Member(role, str(folder), dtype=torch.bfloat16) for role, folder in DEMO.items()))
    requests = [Request(prompt, j, 20, SAMPLED) for prompt in prompts[:3] for j in range(4)]

    def write():
        made = engine.generate(pair, POLICIES["disagreement"], requests, batch_size=8)
        return [(i, g.tokens, g.taken_over, g.guide_passes) for i, g in made]

    assert write() == write()


def test_a_model_that_runs_in_lockstep_gets_the_most(tmp_path, machine):
    machine(available=1)
    member = Member("base", str(save_random_model(tmp_path / "m", vocab_size=544, seed=5, kind="mamba", state_size=4)))
    assert cache_bytes(member) is None
    assert rows_that_fit([member], 10, 512, 64) == 64


def test_longer_samples_are_fewer(demo_pair, machine):
    members = demo_pair.members
    machine(available=2**30)
    rows = [rows_that_fit(members, 10 + n, 512, 64) for n in (100, 5_000, 20_000, 10**7)]
    assert rows[0] == 64
    assert rows == sorted(rows, reverse=True)
    assert 1 < rows[2] < rows[1] < 64
    assert rows[3] == 1  # one sample is always tried
    per_row = 20_096 * sum(map(cache_bytes, members)) + 2 * 8 * 512 * 4
    assert rows[2] == int(0.8 * 2**30 / per_row)
    assert rows_that_fit(members[:1], 20_010, 512, 64) > rows[2]

"""Blocks: the texts of lockstep, and the lengths of drafts by modelled costs."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from architectures import save_model
from helpers.pairs import METHODS, POLICIES, SAMPLED, fail_before_passes, save_random_model, save_struck_guide, texts
from lm_eval.api.instance import Instance

from lm_eval_takeover.decoding import blockwise, engine, lockstep
from lm_eval_takeover.decoding.costs import MACHINES, PassCost, Schedule, count_column_bytes
from lm_eval_takeover.decoding.engine import cache_bytes, rows_that_fit
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, ModelOutputError
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.method.policies import Early, GuideAlone
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair


@pytest.fixture(scope="module")
def prompts(prompts):
    """One more, of a single token."""
    return [*prompts, (65,)]


@pytest.mark.parametrize("block_size", [1, "auto"])
def test_early_takes_its_share_of_the_donors_own_answer(demo_pair, prompts, block_size):
    requests = [Request(p, 0, most, SAMPLED) for p, most in zip(prompts, (40, 30), strict=False)]  # 10.4 and 7.8 tokens
    options = {"batch_size": 4, "block_size": block_size}
    alone = dict(engine.generate(demo_pair, GuideAlone(), requests, **options))
    made = dict(engine.generate(demo_pair, Early(rate=0.26), requests, **options))
    for i, generation in made.items():
        count = round(0.26 * len(alone[i].tokens))
        tokens = len(generation.tokens)
        assert generation.taken_over == [t < count for t in range(tokens)]
        guide, base = (tokens, tokens) if block_size == 1 else (count, tokens - count)
        assert generation.guide_passes == guide - 1 + alone[i].guide_passes
        assert generation.base_passes == base - 1 + alone[i].base_passes


def test_texts_end_inside_a_block(demo_pair, prompts):
    """End tokens, stop strings and the limit on tokens, each met in the middle of a draft and by a takeover."""
    requests = [Request(prompts[0], 0, 400, SAMPLED), Request(prompts[3], 0, 400, SAMPLED, until=("Step 3", "\n\n"))]
    requests += [Request(prompts[1], j, limit, SAMPLED) for j, limit in enumerate((1, 15, 16))]
    for name, batch_size, block_size in (("disagreement", 3, 7), ("random", 16, None)):
        expected = dict(lockstep.generate(demo_pair, POLICIES[name], requests, batch_size=8))
        made = blockwise.generate(demo_pair, POLICIES[name], requests, batch_size=batch_size, block_size=block_size)
        assert texts(made) == texts(expected)
        assert expected[0].tokens[-1] in demo_pair.base.eos_ids
        written = expected[1].tokens  # the token that completes it is the last
        assert "Step 3" in demo_pair.tokenizer.decode(written)
        assert "Step 3" not in demo_pair.tokenizer.decode(written[:-1])


def test_passes_are_counted_and_blocks_of_one_are_lockstep(small_pair, prompts):
    requests = [Request(p, 0, 40, SAMPLED) for p in prompts]
    policy = POLICIES["disagreement"]
    lock = dict(lockstep.generate(small_pair, policy, requests, batch_size=8))
    ones = dict(blockwise.generate(small_pair, policy, requests, batch_size=8, block_size=1))
    for made in (lock, ones):
        read = [len(made[i].tokens) - 1 for i in range(5)]
        assert [(made[i].base_passes, made[i].guide_passes) for i in range(5)] == [(one, one) for one in read]
    for _, alone in lockstep.generate(small_pair, POLICIES["guide"], requests):
        assert (alone.base_passes, alone.guide_passes) == (0, len(alone.tokens) - 1)
    never = dict(blockwise.generate(small_pair, POLICIES["never"], requests, batch_size=8, block_size=8))
    for generation in never.values():
        assert generation.guide_passes == -(-len(generation.tokens) // 8) - 1  # the first one is prefill
    assert all(g.guide_passes == 0 for _, g in blockwise.generate(small_pair, POLICIES["base"], requests))
    for generation in dict(blockwise.generate(small_pair, POLICIES["entropy"], requests, batch_size=5)).values():
        assert generation.guide_passes == max(generation.takeovers - 1, 0)


@pytest.mark.parametrize("name", ["disagreement", "entropy", "segment", "budget"])
def test_memory_that_runs_out_at_any_pass_loses_nothing(small_pair, prompts, monkeypatch, name):
    """The tokens so far stand. Who holds the pen, and what is left to think, follows from them."""
    policy = GuideAlone(thinking_budget=18) if name == "budget" else (POLICIES | METHODS)[name]
    thinks = small_pair.tokenizer.convert_tokens_to_ids("<think>")
    requests = [Request((*prompts[0], thinks), j, 30, SAMPLED) for j in range(3)] + [Request(prompts[1], 0, 30, SAMPLED)]
    options = {"batch_size": 4, "block_size": 4, "traced": True}
    expected = dict(engine.generate(small_pair, policy, requests, **options))
    passes = itertools.count()
    fail_before_passes(monkeypatch, torch.OutOfMemoryError, lambda *_: next(passes) in fails)
    for at in (2, 12, 27):
        passes, fails = itertools.count(), {at}
        made = dict(engine.generate(small_pair, policy, requests, **options))
        for i, generation in made.items():
            assert generation.tokens == expected[i].tokens, at
            np.testing.assert_allclose(generation.observed, expected[i].observed, rtol=1e-3, atol=1e-3)
    fails = range(10**6)
    with pytest.raises(ArgumentError, match="not enough memory for one sample"):
        list(engine.generate(small_pair, policy, requests, batch_size=4))


@pytest.fixture(scope="module")
def struck_pair(tmp_path_factory):
    """The bundled pair with a guide that cannot read one token, which neither model ever writes; and that token."""
    base = Member("base", str(DEMO["base"]))
    token = base.tokenizer.convert_tokens_to_ids("<|im_start|>")
    return Pair(base, save_struck_guide(tmp_path_factory.mktemp("struck"), token)), token


@pytest.mark.parametrize(
    ("name", "kind", "block_size"),
    [("disagreement", "raises", 1), ("disagreement", "nan", 8), ("entropy", "nan", 8), ("guide", "raises", "auto")],
)
def test_a_request_that_fails_is_named_and_all_others_are_finished(
    demo_pair, struck_pair, prompts, monkeypatch, name, kind, block_size
):
    """Whatever the batch: the samples of one prompt are left out, and the others get the texts that they get without it."""
    broken, token = struck_pair
    texts = [*prompts, (*prompts[0][:20], token, *prompts[0][20:])]
    requests = [Request(p, j, 10, SAMPLED, label=f"doc {i}, sample {j}") for i, p in enumerate(texts) for j in range(2)]
    sound = [i for i in range(len(requests)) if token not in requests[i].prompt]
    options = {"batch_size": 4, "block_size": block_size}
    expected = dict(engine.generate(demo_pair, POLICIES[name], [requests[i] for i in sound], **options))
    if kind == "raises":
        error = RuntimeError("no kernel for this token")
        fail_before_passes(monkeypatch, error, lambda role, ids, _: role == "guide" and bool((ids == token).any()))
    made = {}
    pair = demo_pair if kind == "raises" else broken
    for one in map(prepare_pass, pair.members):  # as on a GPU: slots attend to columns behind their texts
        monkeypatch.setattr(one, "graphed", block_size == "auto")
        monkeypatch.setattr(one, "left_reader", None)
    told = f"2 of {len(requests)} requests failed; all others are finished"
    with pytest.raises(ModelOutputError, match=told) as failed:
        made.update(engine.generate(pair, POLICIES[name], requests, **options))
    assert sorted(made) == sound
    assert [made[i].tokens for i in sound] == [expected[place].tokens for place in range(len(sound))]
    assert f"doc {len(prompts)}, sample 0" in str(failed.value)
    assert ("no kernel for this token" if kind == "raises" else "NaN or infinite") in str(failed.value)


def test_where_every_request_fails_the_run_gives_up(struck_pair, prompts):
    broken, token = struck_pair
    requests = [Request((*prompts[0][:n], token), 0, 20, SAMPLED, label=f"doc {n}") for n in range(1, 50)]
    with pytest.raises(ModelOutputError, match="gave up after 32 prompts in a row"):
        list(engine.generate(broken, POLICIES["disagreement"], requests, batch_size=4))


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
    fail_before_passes(monkeypatch, torch.OutOfMemoryError, lambda role, ids, reads_prompt: len(ids) > 4)
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

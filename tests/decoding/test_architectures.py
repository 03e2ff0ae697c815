"""Recurrent and hybrid models write what transformers' `generate` writes; some rows of docs/architectures.md, made anew."""

import re

import architectures
import pytest
import torch
from architectures import plain_passes, save_model
from differences import first_difference
from helpers.pairs import save_random_model
from transformers import AutoTokenizer

from lm_eval_takeover.decoding import blockwise, engine, lockstep
from lm_eval_takeover.decoding.teacher_forcing import force
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.forward_pass import StatePass
from lm_eval_takeover.forward.self_check import verify_pass
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Disagreement, GuideAlone, Random
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

FULL, HALF = torch.float32, torch.bfloat16
# By what is special about it: options and dtype of the base, and of the guide.
PAIRS = {
    "one model twice": (({}, FULL), ({}, FULL)),
    "a larger head, added tokens and untied": (
        ({"kind": "llama"}, FULL),
        ({"vocab_size": 544, "added": ["<think>", "</think>"], "tie_word_embeddings": False}, FULL),
    ),
    "two contexts and a window": (
        ({"kind": "mistral", "sliding_window": 12, "max_position_embeddings": 256}, FULL),
        ({"max_position_embeddings": 1024}, FULL),
    ),
    "two dtypes": (({"kind": "llama"}, FULL), ({}, HALF)),
    "half precision": (({"kind": "llama"}, HALF), ({"vocab_size": 544, "hidden_size": 48, "layers": 3}, HALF)),
}


# By architecture: whether they can be had.
BLOCKS = dict.fromkeys(("gemma4-e2b", "ministral3"), "^yes$") | {"bloom": "takes positions from the columns"}
BLOCKS |= dict.fromkeys(("falcon_h1", "qwen3.5", "recurrent_gemma"), "at batch_size=1 only|plain passes|fail")


@pytest.mark.parametrize("kind", BLOCKS)
def test_an_architecture_of_the_table(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(architectures, "BATCHES", (3,))
    row = architectures.check_architecture(kind, tmp_path)
    assert (row.verdict, row.hf) == ("equal", "6/6")
    assert row.compared > 25
    assert re.search(BLOCKS[kind], row.blocks)


@pytest.mark.parametrize(("kind", "role"), [("falcon_h1", "guide"), ("qwen3_next", "base"), ("lfm2", "guide")])
def test_states_are_rolled_back_in_blocks(tmp_path, kind, role):
    """One row at a time, two samples of a prompt one after the other, takeovers, bonus tokens, rows that wait: as in lockstep."""
    folders = {name: save_model(tmp_path / name, "llama", seed=seed) for name, seed in (("base", 2), ("guide", 3))}
    folders[role] = save_model(tmp_path / kind, kind)
    pair = Pair(*(Member(name, str(folder)) for name, folder in folders.items()))
    assert isinstance(verify_pass(pair.member(role)), StatePass)
    requests = [Request((65, 70, 80, 66), sample, 16, Sampling(1.0)) for sample in range(2)]
    policies = {"disagreement": Disagreement(gate=Gate(7.0)), "guide": GuideAlone(), "random": Random(rate=0.2)}
    for name, policy in policies.items():
        expected = dict(lockstep.generate(pair, policy, requests, batch_size=1))
        for block_size in (3, 20, "auto"):
            made = dict(engine.generate(pair, policy, requests, block_size=block_size))
            assert [made[i].tokens for i in range(2)] == [expected[i].tokens for i in range(2)], (name, block_size)
        if name == "disagreement":
            assert 0 < sum(map(sum, (made[i].taken_over for i in range(2)))) < 32
            assert made[0].guide_passes < len(made[0].tokens)
    with pytest.raises(ArgumentError, match=r"keep a state, which blocks can roll back at batch_size=1 only; use block_size=1"):
        list(engine.generate(pair, policy, requests, batch_size=2, block_size=3))


@pytest.mark.parametrize("name", PAIRS)
def test_any_pair_writes_in_blocks_what_it_writes_in_lockstep(tmp_path, prompts, name):
    """Heads tied or not, windows, contexts of two lengths, two dtypes, added tokens and a larger head, one model twice."""
    base, guide = PAIRS[name]
    members = []
    for role, (options, dtype) in (("base", base), ("guide", guide)):
        folder = tmp_path / role
        settings = {"vocab_size": 512, "seed": 5 + (role == "guide" and guide != base)} | options
        tokenizer = AutoTokenizer.from_pretrained(DEMO["base"])
        tokenizer.add_tokens(settings.pop("added", []), special_tokens=True)
        save_random_model(folder, tokenizer=tokenizer, **settings)
        members.append(Member(role, str(folder), dtype=dtype))
    pair = Pair(*members)
    assert pair.max_length == min(member.max_length for member in members)
    assert pair.vocab_size == 512
    policy = Disagreement(gate=Gate(7.6, 0.9))
    requests = [Request(prompt, sample, 16, Sampling(1.0)) for prompt in prompts[:2] for sample in range(2)]
    expected = dict(lockstep.generate(pair, policy, requests, batch_size=1))
    made = dict(blockwise.generate(pair, policy, requests, batch_size=3))
    exact = all(member.dtype == torch.float32 for member in members)
    differing = [i for i in made if made[i].tokens != expected[i].tokens]
    told = [first_difference(pair, policy, requests[i], made[i], expected[i]) for i in differing]
    assert not (told if exact else [what for what, explained in told if not explained])
    texts, more = [prompts[0][:20], prompts[1][:9]], [prompts[2][:12], prompts[3][:7]]
    together = force(pair, policy, texts, more)
    alone = [force(pair, policy, [text], [one])[0] for text, one in zip(texts, more, strict=True)]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.log_probs, other.log_probs, rtol=1e-3, atol=1e-3 if exact else 0.3)


LONGROPE = {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0], "original_max_position_embeddings": 24}


@pytest.mark.parametrize(
    ("role", "kind", "rope", "blocks"), [("base", "longrope", LONGROPE, (1,)), ("guide", "dynamic", {"factor": 4.0}, (1, 5))]
)
def test_a_rotation_that_changes_with_the_length_asks_no_other_row(tmp_path, prompts, role, kind, rope, blocks):
    """longrope: texts that outgrow it, in batches or read again, are as in plain passes. Dynamic NTK: so are texts at its end."""
    options = {"rope_parameters": rope | {"rope_type": kind, "rope_theta": 1e4}, "head_dim": 8, "max_position_embeddings": 40}
    folders = {name: save_random_model(tmp_path / name, vocab_size=512, seed=5) for name in ("base", "guide")}
    folders[role] = save_random_model(tmp_path / kind, vocab_size=512, seed=6, kind="llama", **options)
    pair = Pair(*(Member(name, str(folder)) for name, folder in folders.items()))
    policy, lengths = Disagreement(gate=Gate(7.0)), (9, 22, 30, 36)
    requests = [Request(prompts[0][:length], j, 40 - length, Sampling(1.0)) for length in lengths for j in range(2)]
    with plain_passes(pair):
        expected = dict(lockstep.generate(pair, policy, requests))
    for block_size in blocks:
        made = dict(engine.generate(pair, policy, requests, batch_size=5, block_size=block_size))
        assert [made[i].tokens for i in range(8)] == [expected[i].tokens for i in range(8)], block_size
    forced = force(pair, policy, [r.prompt for r in requests], [made[i].tokens for i in range(8)], most=8 * 512 * 7)
    assert all(one.scores.tolist() == pytest.approx(expected[i].scores, rel=1e-3) for i, one in enumerate(forced))

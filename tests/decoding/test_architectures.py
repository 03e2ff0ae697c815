"""Recurrent and hybrid models write what transformers' `generate` writes; some rows of docs/architectures.md, made anew."""

import re

import pytest
import torch
from architectures import check_architecture, save_model
from helpers.pairs import GREEDY, ROOT

from lm_eval_takeover.decoding import engine
from lm_eval_takeover.method.policies import BaseAlone
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair


@pytest.mark.parametrize("kind", ["falcon_h1", "qwen3_next", "lfm2", "mamba"])
def test_the_samples_of_one_prompt_share_no_state(tmp_path, kind):
    """At every batch size both greedy samples are `generate`'s: a pass writes to convolution and recurrent states in place."""
    member = Member("base", str(save_model(tmp_path / kind, kind)))
    prompts = [(65, 70, 80, 66, 90), (71, 72), (91, 85, 67)]
    requests = [Request(prompt, sample, 12, GREEDY) for prompt in prompts for sample in range(2)]
    ends = sorted(member.eos_ids)
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        options = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": ends, "pad_token_id": ends[0]}
        text = member.model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        expected += [text[0, len(prompt) :].tolist()] * 2
    for batch_size in (1, 3, 8):
        made = dict(engine.generate(Pair(member, None), BaseAlone(), requests, batch_size=batch_size))
        assert [made[i].tokens for i in range(6)] == expected, f"batch size {batch_size}"


@pytest.mark.parametrize("kind", ["llama", "falcon_h1", "recurrent_gemma"])
def test_an_architecture_of_the_table(tmp_path, kind):
    row = check_architecture(kind, tmp_path)
    assert row.verdict == "equal"
    assert row.hf == "18/18"
    assert row.compared > 60
    assert row.blocks == "yes" or "rolled back" in row.blocks or "plain passes" in row.blocks or "fail" in row.blocks


def test_a_table_of_many_architectures_and_none_is_wrong():
    rows = re.findall(r"^\|`(\w[\w-]*)`\|(.*)\|$", (ROOT / "docs" / "architectures.md").read_text(), re.MULTILINE)
    assert len({name for name, _ in rows}) == len(rows) >= 60
    assert not [name for name, cells in rows if "wrong" in cells]

"""A model's pass: what preparing it tells and leaves as it was, and its cache."""

import pytest
import torch
from helpers.pairs import save_random_model

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.forward_pass import ForwardPass
from lm_eval_takeover.pair.member import Member


@pytest.mark.parametrize(("role", "argument"), [("base", "dtype"), ("guide", "guide_dtype")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("computes", [False, True], ids=["emulated", "native"])
def test_bfloat16_that_is_emulated_is_told_with_the_argument(random_pair, machine, caplog, role, argument, dtype, computes):
    machine(bfloat16=computes)
    ForwardPass(Member(role, str(random_pair[role]), dtype=dtype))
    told = f"is loaded in bfloat16, in which this CPU cannot compute: {argument}=float32" in caplog.text
    assert told == (dtype == torch.bfloat16 and not computes)


def test_the_model_stays_what_it_was_for_others(random_pair):
    member = Member("base", str(random_pair["base"]))
    ids = torch.arange(12)[None]
    before = member.model(ids).logits
    with torch.inference_mode():
        ForwardPass(member)
    after = member.model(ids, use_cache=False).logits
    torch.testing.assert_close(before, after)
    after.sum().backward()  # the weights are ordinary ones


def test_layers_that_keep_a_state_are_refused_by_name(tmp_path):
    base = save_random_model(tmp_path / "mamba", vocab_size=544, seed=5, kind="mamba", state_size=4)
    member = Member("base", str(base))
    with pytest.raises(ArgumentError, match=r"base='mamba': .* keep a state that cannot be rolled back; use block_s"):
        ForwardPass(member)

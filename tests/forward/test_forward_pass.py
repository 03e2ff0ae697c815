"""A model's pass: what preparing it tells and leaves as it was; every layout of weights gives what `linear` gives."""

import pytest
import torch
from torch.nn import Linear
from torch.nn.functional import linear

from lm_eval_takeover.forward.forward_pass import ForwardPass
from lm_eval_takeover.forward.lean_decoder import Projection
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


SMALL, LARGE = (96, [64, 32, 32]), (512, [768, 512])


def modules(inputs, outputs, bias, dtype=torch.float32):
    torch.manual_seed(0)
    return [Linear(inputs, one, bias=bias, dtype=dtype) for one in outputs]


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16 emulated", "bfloat16 native"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [SMALL, LARGE])
def test_every_layout_equals_linear(machine, inputs, outputs, pack, bias, dtype):
    """bfloat16 is rounded where `linear` rounds it. Sums are float32 in every layout, whether the CPU multiplies in bfloat16 or
    copies of the weights do in float32."""
    kind = getattr(torch, dtype.partition(" ")[0])
    machine(bfloat16=dtype.endswith("native"))
    with torch.inference_mode(False), torch.no_grad():
        parts = modules(inputs, outputs, bias, kind)
        weight = torch.cat([part.weight for part in parts]).double()
        added = torch.cat([part.bias for part in parts]).double() if bias else None
        projection = Projection(parts, pack=pack)
    if kind == torch.float32:  # no weight is held twice
        storage = projection.weight.untyped_storage().data_ptr()
        assert {part.weight.untyped_storage().data_ptr() for part in parts} == {storage}
    # In bfloat16 a rounding or two: those of the sum, and of the bias that is added to it.
    close = {"rtol": 1e-4, "atol": 1e-4} if kind == torch.float32 else {"rtol": 2.0**-8, "atol": 2.0**-7}
    for tokens in (1, 2, 8, 9, 12, 256, 257):
        x = torch.randn(tokens, inputs, dtype=kind)
        wanted, found = linear(x.double(), weight, added), projection(x)
        assert found.is_contiguous() and found.dtype == kind
        torch.testing.assert_close(found.double(), wanted, **close)
        if kind == torch.float32:
            sum_ = torch.randn(tokens, sum(outputs))
            torch.testing.assert_close(projection.add_to(sum_, x).double(), sum_ + wanted, **close)
            torch.testing.assert_close(torch.cat([part(x) for part in parts], -1).double(), wanted, **close)
        else:
            assert torch.equal(projection.add_to(x.new_zeros(found.shape), x), found)

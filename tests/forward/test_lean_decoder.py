"""Every layout gives what `linear` gives, for however many tokens, and the modules go on computing the same."""

import pytest
import torch
from torch.nn import Linear
from torch.nn.functional import linear

from lm_eval_takeover.forward.lean_decoder import LeanDecoder, Projection
from lm_eval_takeover.pair.member import Member

SMALL, LARGE = (96, [64, 32, 32]), (512, [768, 512])


def modules(inputs, outputs, bias, dtype=torch.float32):
    torch.manual_seed(0)
    return [Linear(inputs, one, bias=bias, dtype=dtype) for one in outputs]


@torch.inference_mode()
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [SMALL, LARGE])
def test_every_layout_equals_linear(inputs, outputs, pack, bias):
    with torch.inference_mode(False), torch.no_grad():
        parts = modules(inputs, outputs, bias)
        weight = torch.cat([part.weight for part in parts]).clone()
        added = torch.cat([part.bias for part in parts]).clone() if bias else None
        projection = Projection(parts, pack=pack)
    storage = projection.weight.untyped_storage().data_ptr()  # no weight is held twice
    assert {part.weight.untyped_storage().data_ptr() for part in parts} == {storage}
    for tokens in (1, 2, 12, 256, 257):
        x, sum_ = torch.randn(tokens, inputs), torch.randn(tokens, sum(outputs))
        wanted = linear(x, weight, added)
        found = projection(x)
        assert found.is_contiguous()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(projection.add_to(sum_, x), sum_ + wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(torch.cat([part(x) for part in parts], -1), wanted, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("computes", [False, True], ids=["emulated", "native"])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [SMALL, LARGE])
def test_bfloat16_is_rounded_where_linear_rounds_it(machine, inputs, outputs, bias, pack, computes):
    """Sums are float32 in every layout, whether the CPU multiplies in bfloat16 or copies of the weights do in float32."""
    machine(bfloat16=computes)
    with torch.inference_mode(False), torch.no_grad():
        parts = modules(inputs, outputs, bias, torch.bfloat16)
        projection = Projection(parts, pack=pack)
    for tokens in (1, 8, 9, 257):
        x = torch.randn(tokens, inputs, dtype=torch.bfloat16)
        exact = torch.cat([linear(x.double(), part.weight.double()) for part in parts], -1)
        if bias:
            exact += torch.cat([part.bias.double() for part in parts])
        found = projection(x)
        assert found.dtype == torch.bfloat16
        # A rounding or two: those of the sum, and of the bias that is added to it.
        torch.testing.assert_close(found.double(), exact, rtol=2.0**-8, atol=2.0**-7)
        assert torch.equal(projection.add_to(x.new_zeros(found.shape), x), found)


def test_other_half_precision_is_left_to_torch():
    parts = modules(*LARGE, bias=False, dtype=torch.float16)
    x = torch.randn(12, LARGE[0], dtype=torch.float16)
    with torch.no_grad():
        wanted = torch.cat([part(x) for part in parts], -1)
        torch.testing.assert_close(Projection(parts, pack=True)(x), wanted)


@pytest.mark.parametrize("available", [0, 2**50])
def test_weights_are_packed_where_memory_allows(random_pair, machine, monkeypatch, available):
    """Packing is a copy of the weights: with little memory left, passes are slower instead."""
    packs = []
    monkeypatch.setattr(
        "lm_eval_takeover.forward.lean_decoder.Projection",
        lambda parts, *, pack: packs.append(pack) or Projection(parts, pack=pack),
    )
    machine(available=available)
    LeanDecoder(Member("guide", str(random_pair["guide"])).model)
    assert set(packs) == {available > 0}

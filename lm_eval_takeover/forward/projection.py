"""`x W^T + b` for a few tokens, in the layout that is fastest for their number.

On a CPU, MKL takes several times as long for 2 to 60 tokens as for one, though it reads the same weights. Small weights are
stored as `[in, out]`, so no product transposes them. Large ones have a second copy in oneDNN's layout: on two cores with AVX-512
it halves a float32 pass over 12 tokens; with AMX, a bfloat16 pass takes two thirds to three quarters. A CPU without bfloat16
arithmetic has float32 copies: torch's emulation rounds the same sums and takes three times as long.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import linear

SMALL = 2**19  # weights of a matrix that stays in a core's cache
# Numbers of tokens for which a layout is the fastest. `[in, out]`: any in float32, few in bfloat16. oneDNN's: some in float32,
# any in bfloat16.
_ANY, _SOME, _FEW = range(1, 2**31), range(2, 257), range(1, 9)


def computes_bfloat16() -> bool:
    """Whether this CPU has bfloat16 arithmetic, as far as torch can tell."""
    features = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return features.get("architecture") != "x86_64" or any(features.get(name) for name in ("avx512_bf16", "amx_bf16"))


def packed_dtype(dtype: torch.dtype) -> torch.dtype | None:
    """The dtype of the second copy that a CPU keeps of weights of this dtype; None where it keeps none."""
    if dtype == torch.bfloat16 and not computes_bfloat16():
        return torch.float32
    return dtype if dtype in (torch.float32, torch.bfloat16) else None


class Projection:
    """Linear modules that read one input, as one matrix.

    The modules keep views of it, so no weight is stored twice. A CPU stores a second copy of small weights if a view cannot
    transpose them or widen them to float32, and of large ones with `pack`.
    """

    def __init__(self, modules: Sequence[Any], *, pack: bool = False) -> None:
        first = modules[0].weight
        packed = packed_dtype(first.dtype) if first.device.type == "cpu" else None
        weight = torch.cat([module.weight for module in modules]) if len(modules) > 1 else first
        bias = None if modules[0].bias is None else torch.cat([module.bias for module in modules])
        self._transposed: Tensor | None = None  # float32 `[in, out]`
        self._counts_transposed = range(0)  # numbers of tokens for which it is used
        if packed is not None and weight.numel() <= SMALL:
            self._transposed = weight.t().float().contiguous()
            self._counts_transposed = _ANY if first.dtype == torch.float32 else _FEW
            if first.dtype == torch.float32 and len(modules) > 1:
                weight = self._transposed.t()
        self.weight, self.bias = weight, bias
        self._by_gpu = weight.device.type == "cuda"
        self._packed: Tensor | None = None
        if packed is not None and pack and self._counts_transposed is not _ANY:
            self._packed = _pack(weight.to(packed))
        self._counts_packed = _ANY if packed == torch.bfloat16 else _SOME
        self._float_bias = None if bias is None else bias.float()
        if len(modules) > 1:
            _replace_by_views(modules, weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Of x `[tokens, in]`: `[tokens, out]`, contiguous."""
        if len(x) in self._counts_transposed:
            if x.dtype != torch.float32:
                return self(x.float()).to(x.dtype)
            assert self._transposed is not None
            bias = self._float_bias
            return torch.mm(x, self._transposed) if bias is None else torch.addmm(bias, x, self._transposed)
        if self._packed is not None and len(x) in self._counts_packed:
            if self._packed.dtype == x.dtype:
                return _multiply_packed(x, self._packed, self.bias)
            return _multiply_packed(x.float(), self._packed, self._float_bias).to(x.dtype)
        return linear(x, self.weight, self.bias)

    def add_to(self, sum_: Tensor, x: Tensor) -> Tensor:
        """`sum_ + self(x)`, sum_ `[tokens, out]`."""
        if self._counts_transposed is _ANY and self.bias is None:
            assert self._transposed is not None
            return torch.addmm(sum_, x, self._transposed)
        if self._by_gpu and self.bias is None:
            return torch.addmm(sum_, x, self.weight.t())
        return sum_ + self(x)


def _pack(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout; None where this build of torch has none."""
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
        _multiply_packed(weight.new_ones(2, weight.shape[1]), packed, None)
    except (AttributeError, RuntimeError):
        return None
    return packed


def _multiply_packed(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


def _replace_by_views(modules: Sequence[Any], weight: Tensor, bias: Tensor | None) -> None:
    """Each module's weight and bias become its rows of the common ones."""
    start = 0
    for module in modules:
        end = start + len(module.weight)
        module.weight = Parameter(weight[start:end], requires_grad=False)
        if bias is not None:
            module.bias = Parameter(bias[start:end], requires_grad=False)
        start = end

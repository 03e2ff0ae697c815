"""`x W^T + b` for a few tokens, in the layout that is fastest for as many as there are.

A block gives a matrix 2 to some 60 tokens, for which MKL takes several times as long as for one on a CPU, though it reads the
same weights. Small weights are laid out so that no product has to turn them; large ones are kept a second time in oneDNN's own
layout, which torch's compiler uses for weights that do not change. On two cores with AVX-512 that halves a float32 pass over 12
tokens; with AMX, any bfloat16 pass takes two thirds to three quarters. A CPU without bfloat16 arithmetic keeps float32 copies of
bfloat16 weights: they multiply in float32 and round the sums, as the emulation does that takes three times as long.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import linear

_SMALL = 2**19  # weights of a matrix that stays in a core's cache
# Numbers of tokens for which a layout is the fastest: columns for any in float32 and for few in bfloat16, oneDNN's for some in
# float32 and for any in bfloat16.
_COUNTS, _SOME, _FEW = range(1, 2**31), range(2, 257), range(1, 9)


def computes_bfloat16() -> bool:
    """Whether this CPU has bfloat16 arithmetic, as far as torch can tell."""
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return found.get("architecture") != "x86_64" or any(found.get(name) for name in ("avx512_bf16", "amx_bf16"))


def packed_dtype(dtype: torch.dtype) -> torch.dtype | None:
    """In what a CPU keeps the second copy of weights of this dtype; None where there is none."""
    if dtype == torch.bfloat16 and not computes_bfloat16():
        return torch.float32
    return dtype if dtype in (torch.float32, torch.bfloat16) else None


class Projection:
    """Linear modules that read one input, as one matrix.

    Several modules keep views of it, so that their weights are not held twice. On a CPU small weights are, where a view would not
    do, and with `pack` large ones.
    """

    def __init__(self, modules: Sequence[Any], *, pack: bool = False) -> None:
        first = modules[0].weight
        packed = packed_dtype(first.dtype) if first.device.type == "cpu" else None
        weight = torch.cat([module.weight for module in modules]) if len(modules) > 1 else first
        bias = None if modules[0].bias is None else torch.cat([module.bias for module in modules])
        self._columns: Tensor | None = None  # float32 `[in, out]`
        self._in_columns = range(0)  # the numbers of tokens for which they are used
        if packed is not None and weight.numel() <= _SMALL:
            self._columns = weight.t().float().contiguous()
            self._in_columns = _COUNTS if first.dtype == torch.float32 else _FEW
            if first.dtype == torch.float32 and len(modules) > 1:
                weight = self._columns.t()
        self.weight, self.bias = weight, bias
        self._packed: Tensor | None = None
        if packed is not None and pack and self._in_columns is not _COUNTS:
            self._packed = _packed(weight.to(packed))
        self._in_packed = _COUNTS if packed == torch.bfloat16 else _SOME
        self._float_bias = None if bias is None else bias.float()
        if len(modules) > 1:
            _keep_views(modules, weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Of x `[tokens, in]`: `[tokens, out]`, contiguous."""
        if len(x) in self._in_columns:
            return self._by_columns(x) if x.dtype == torch.float32 else self._by_columns(x.float()).to(x.dtype)
        if self._packed is not None and len(x) in self._in_packed:
            if self._packed.dtype == x.dtype:
                return _product(x, self._packed, self.bias)
            return _product(x.float(), self._packed, self._float_bias).to(x.dtype)
        return linear(x, self.weight, self.bias)

    def _by_columns(self, x: Tensor) -> Tensor:
        assert self._columns is not None
        if self._float_bias is None:
            return torch.mm(x, self._columns)
        return torch.addmm(self._float_bias, x, self._columns)

    def onto(self, sum_: Tensor, x: Tensor) -> Tensor:
        """`sum_ + self(x)`, sum_ `[tokens, out]`."""
        if self._in_columns is _COUNTS and self.bias is None:
            assert self._columns is not None
            return torch.addmm(sum_, x, self._columns)
        return sum_ + self(x)


def _packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout; None where this build of torch has none."""
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
        _product(weight.new_ones(2, weight.shape[1]), packed, None)
    except (AttributeError, RuntimeError):
        return None
    return packed


def _product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return found


def _keep_views(modules: Sequence[Any], weight: Tensor, bias: Tensor | None) -> None:
    start = 0
    for module in modules:
        end = start + len(module.weight)
        module.weight = Parameter(weight[start:end], requires_grad=False)
        if bias is not None:
            module.bias = Parameter(bias[start:end], requires_grad=False)
        start = end

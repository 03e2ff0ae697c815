"""`x W^T + b` for a few tokens, in the layout that is fastest for as many as there are.

A block gives a matrix 2 to some 60 tokens, for which MKL takes several times as long as for one on a CPU, though it reads the
same weights. Small weights are laid out so that no product has to turn them; large ones are kept a second time in oneDNN's own
layout, which torch's compiler uses for weights that do not change. On two AVX-512 cores that halves a pass over 12 tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import linear

_SMALL = 2**19  # weights of a matrix that stays in a core's cache
_FEW = range(2, 257)  # tokens, for which oneDNN's layout is the faster one


class Projection:
    """Linear modules that read one input, as one matrix.

    Several modules keep views of it, so that their weights are not held twice; a small single one is, and with `pack` so is a
    large float32 matrix on a CPU.
    """

    def __init__(self, modules: Sequence[Any], *, pack: bool = False) -> None:
        first = modules[0].weight
        plain = first.device.type == "cpu" and first.dtype == torch.float32
        numel = sum(module.weight.numel() for module in modules)
        weight = torch.cat([module.weight for module in modules]) if len(modules) > 1 else first
        bias = None if modules[0].bias is None else torch.cat([module.bias for module in modules])
        self._columns: Tensor | None = None  # `[in, out]`
        if plain and numel <= _SMALL:
            self._columns = weight.t().contiguous()
            weight = self._columns.t() if len(modules) > 1 else weight
        self.weight, self.bias = weight, bias
        self._packed: Tensor | None = None
        if plain and pack and self._columns is None:
            self._packed = _packed(weight)
        if len(modules) > 1:
            _keep_views(modules, weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Of x `[tokens, in]`: `[tokens, out]`, contiguous."""
        if self._columns is not None:
            if self.bias is None:
                return torch.mm(x, self._columns)
            return torch.addmm(self.bias, x, self._columns)
        if self._packed is not None and len(x) in _FEW:
            found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
            return found
        return linear(x, self.weight, self.bias)

    def onto(self, sum_: Tensor, x: Tensor) -> Tensor:
        """`sum_ + self(x)`, sum_ `[tokens, out]`."""
        if self._columns is not None and self.bias is None:
            return torch.addmm(sum_, x, self._columns)
        return sum_ + self(x)


def _packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout; None where this build of torch has none."""
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
        token = torch.ones(2, weight.shape[1])
        torch.ops.mkldnn._linear_pointwise(token, packed, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return None
    return packed


def _keep_views(modules: Sequence[Any], weight: Tensor, bias: Tensor | None) -> None:
    start = 0
    for module in modules:
        end = start + len(module.weight)
        module.weight = Parameter(weight[start:end], requires_grad=False)
        if bias is not None:
            module.bias = Parameter(bias[start:end], requires_grad=False)
        start = end

"""Which drafted tokens stand: those up to the first position where another token is emitted, and that one."""

import torch
from torch import Tensor


def count_standing(emitted: Tensor, drafted: Tensor, lengths: Tensor, *, bonus: bool) -> tuple[Tensor, Tensor]:
    """How many tokens `[rows]` stand of each draft, and whether its last one is another than was drafted: bool `[rows]`.

    emitted, drafted: `[rows, k]`, of which the first `lengths` `[rows]` were drafted. bonus: a draft that stands gives one token
    more. Needs no value on the host.
    """
    places = torch.arange(drafted.shape[1], device=drafted.device)
    differs = (emitted != drafted) & (places < lengths[:, None])
    ended = differs.any(1)
    return torch.where(ended, differs.byte().argmax(1) + 1, lengths + bonus), ended

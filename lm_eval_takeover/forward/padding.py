"""Rows of token ids of any lengths, as one tensor. Padding is token 0."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lm_eval_takeover.forward.transfers import upload


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and mask `[rows, longest]`, the rows aligned at their ends; the mask is 0 on padding."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def pad_right(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Token ids `[rows, longest]`, the rows aligned at their starts."""
    longest = max(map(len, rows))
    return upload(torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows]), device)

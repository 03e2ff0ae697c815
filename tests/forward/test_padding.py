"""Rows of any lengths as one tensor, aligned at their ends or at their starts."""

import torch

from lm_eval_takeover.forward.transfers import pad_left, pad_right

ROWS, CPU = [[5, 6, 7], [8], [9, 9]], torch.device("cpu")


def test_rows_are_aligned_at_their_ends_with_a_mask():
    ids, mask = pad_left(ROWS, CPU)
    assert ids.tolist() == [[5, 6, 7], [0, 0, 8], [0, 9, 9]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1], [0, 1, 1]]


def test_rows_are_aligned_at_their_starts():
    assert pad_right(ROWS, CPU).tolist() == [[5, 6, 7], [8, 0, 0], [9, 9, 0]]

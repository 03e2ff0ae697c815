"""Attention split over the columns, in Triton's interpreter or on a GPU, beside SDPA."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from lm_eval_takeover.kernels import attention

SHAPES = [(1, 1, 256, 64), (2, 12, 700, 64), (3, 5, 90, 16), (1, 40, 513, 32), (5, 3, 64, 16)]  # rows, new, columns, dim
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16  # the interpreter multiplies bfloat16 as integers


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("window", "dtype"), [(None, torch.float32), (30, torch.float32), (30, HALF)], ids=str)
def test_it_is_that_of_sdpa(shape, window, dtype):
    """Rows of their own lengths; the keys of a row are a part of a wider buffer, and the queries of a fused projection."""
    rows, new, columns, dim = shape
    kv_heads, group = 2, 3
    generator = torch.Generator().manual_seed(columns)
    fused = torch.randn(rows, new, (group + 2) * kv_heads, dim, generator=generator, dtype=torch.float32).to(dtype)
    queries = fused[:, :, : group * kv_heads]
    buffers = torch.randn(2, rows + 1, columns + 7, kv_heads, dim, generator=generator).to(dtype)
    keys, values = (buffer[:rows, :columns].transpose(1, 2) for buffer in buffers)
    lengths = torch.randint(0, columns - new + 1, (rows, 1), generator=generator)
    positions, at = (lengths + torch.arange(new))[..., None], torch.arange(columns)
    hidden = at > positions
    if window is not None:
        hidden |= at <= positions - window
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)[:, None]
    repeated = (part.double().repeat_interleave(group, 1) for part in (keys, values))
    expected = scaled_dot_product_attention(queries.double().transpose(1, 2), *repeated, attn_mask=mask.double(), scale=0.3)
    made = attention.attend(queries, keys, values, mask, 0.3)
    assert made.dtype == dtype and made.shape == queries.shape
    close = {"atol": 1e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(made.double(), expected.transpose(1, 2), **close)

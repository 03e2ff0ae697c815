"""How wide a pass may be, in new tokens a row: buffers and drafts are made for no more."""

import psutil
import torch

LONGEST = 64  # tokens of a draft, at most
_MOST_LOGITS = 2**26  # rows x tokens x vocabulary of a draft that are always held: 256 MiB


def longest_draft(rows: int, vocab: int, device: torch.device) -> int:
    """The most tokens of a draft whose logits are to be held: in float32, 1/64 of the memory that the device has."""
    return max(1, min(LONGEST, max(_MOST_LOGITS, _memory(device) // 256) // (rows * vocab)))


def _memory(device: torch.device) -> int:
    """Bytes that it has."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return int(psutil.virtual_memory().total)


_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # new tokens of a pass that is padded


def round_up(new: int) -> int:
    """The length that a pass over so many new tokens is padded to, so that few shapes occur."""
    return next((size for size in _SIZES if size >= new), new)

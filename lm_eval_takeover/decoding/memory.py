"""How many samples fit into memory, for `batch_size=auto`."""

from collections.abc import Sequence

import psutil
import torch

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.draft_length import LONGEST
from lm_eval_takeover.forward.forward_pass import ForwardPass, release_memory
from lm_eval_takeover.forward.ragged_cache import round_up_columns
from lm_eval_takeover.forward.reader import Reader
from lm_eval_takeover.forward.self_check import verify_pass
from lm_eval_takeover.pair.member import Member

_USED = 0.8  # of what is free
_LOGITS = 8  # float32 copies of one token's logits that are held at a time, drafts included


@torch.inference_mode()
def cache_bytes(member: Member) -> int | None:
    """Bytes of keys and values that one token of one sample takes in this model, measured; None where rows share one length."""
    try:
        forward = verify_pass(member, rows=2)
    except ArgumentError:
        return None
    assert isinstance(forward, ForwardPass)
    reader = Reader(forward, 1, 1, graphed=False)
    reader.read([0], torch.zeros(1, 1, dtype=torch.long))
    return sum(int(buffer[0, 0].numel() * buffer.itemsize) for layer in reader.cache.layers for buffer in layer.buffers)


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on this device."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    return int(psutil.virtual_memory().available)


def rows_that_fit(members: Sequence[Member], tokens: int, vocab: int, most: int) -> int:
    """Rows of so many tokens that can be held at a time, 1 to `most`. Loads the models.

    `most` where a model runs in lockstep. On a CPU it is the machine's memory that counts, not a container's limit.
    """
    for member in members:
        release_memory(member)
    sizes = [cache_bytes(member) for member in members]
    columns = round_up_columns(tokens + LONGEST)
    needed: dict[torch.device, float] = {}
    for member, size in zip(members, sizes, strict=True):
        if size is None:
            return most
        row = columns * size + _LOGITS * vocab * 4
        device = torch.empty(0, device=member.device).device  # with its number
        needed[device] = needed.get(device, 0.0) + row
    fits = min(_USED * free_bytes(device) / row for device, row in needed.items())
    return max(1, min(most, int(fits)))

"""How many samples fit into memory, for `batch_size=auto`."""

from collections.abc import Sequence

import psutil
import torch

from lm_eval_takeover.generation import Request
from lm_eval_takeover.pair import Member

_USED = 0.8  # of what is free
_GROWTH = 1.5  # caches are allocated ahead
_LOGITS = 8  # float32 copies of one token's logits that are held at a time, drafts included


def cache_bytes(member: Member) -> int:
    """Bytes of keys and values that one token of one sample takes in this model, which is loaded."""
    config = member.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * member.model.dtype.itemsize)


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on this device."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    return int(psutil.virtual_memory().available)


def rows_that_fit(members: Sequence[Member], requests: Sequence[Request], vocab: int, most: int) -> int:
    """Samples that can be written at a time, 1 to `most`, if each becomes as long as it may. Loads the models."""
    tokens = max(len(request.prompt) + request.max_new_tokens for request in requests)
    needed: dict[torch.device, float] = {}
    for member in members:
        row = _GROWTH * tokens * cache_bytes(member) + _LOGITS * vocab * 4
        needed[member.device] = needed.get(member.device, 0.0) + row
    fits = min(_USED * free_bytes(device) / row for device, row in needed.items())
    return max(1, min(most, int(fits)))

"""Compares the kernels on a GPU with torch on a CPU. Kernels that differ are not used, and a line says so."""

import logging
from dataclasses import astuple
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lm_eval_takeover.errors import ArgumentError, is_out_of_memory
from lm_eval_takeover.kernels import operations as kernels
from lm_eval_takeover.method.observations import observe
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw

logger = logging.getLogger(__name__)

_ROWS, _VOCAB = 48, 5008  # three tiles of the kernels, the last one cut short
_PADDING = 16  # tokens behind the vocabulary: rows begin at multiples of 16, as in most models, so loads are vectors
_SAMPLINGS = (Sampling(), Sampling(1.0), Sampling(0.6, 0.95), Sampling(0.8, 0.9, 20), Sampling(1.2, min_p=0.1))
_NEAR_TIES = 2  # draws that a rounding may change
_LARGE, _ASKED = 151_936, 8  # a vocabulary of 75 tiles, in bfloat16; words that are drawn from it


@cache
def check_kernels(device: torch.device) -> None:
    """Compare them once for each device; a CPU has none. Raises ArgumentError if Triton is missing."""
    fault = _find_fault(device) if device.type == "cuda" else None
    if fault is not None:
        kernels.REFUSED.add(device)
        logger.warning(
            "%s: the kernels for scores and draws are not used, since %s; the CPU computes them, which takes longer",
            device, fault,
        )  # fmt: skip


@torch.inference_mode()
def _find_fault(device: torch.device) -> str | None:
    generator = torch.Generator().manual_seed(0)
    host, noise = (3 * torch.randn(_ROWS, 3, _VOCAB, generator=generator) for _ in range(2))
    host[::5, :, : _VOCAB // 2] = -torch.inf
    tokens = torch.randint(_VOCAB // 2, _VOCAB, (_ROWS, 3), generator=generator)
    words = torch.randint(-(2**63), 2**63 - 1, (_ROWS,), generator=generator)
    host, donor, tokens = host[:, 1:], (host + noise)[:, 1:], tokens[:, 1:]
    ours = [_copy_padded(part, device) for part in (host, donor, tokens)]
    try:
        for score in scores:
            if score.source.digest is None and not _agree(score(*ours), score(host, donor, tokens)):
                return f"{score.name} differs from torch's"
        observed = observe(ours[2], ours[0], ours[1], base_logits=ours[0])
        if not _agree(observed, observe(tokens, host, donor, base_logits=host)):
            return "numbers of traces differ from torch's"
        for sampling in _SAMPLINGS:
            drawn = draw(ours[0][:, 0], words.to(device), sampling).cpu()
            if int((drawn != draw(host[:, 0], words, sampling)).sum()) > _NEAR_TIES:
                return f"draws at {sampling} differ from numpy's"
        return _find_fault_of_rows(device, generator) or _find_fault_of_attention(device, generator)
    except Exception as error:
        if isinstance(error, ArgumentError) or is_out_of_memory(error):
            raise
        return f"they fail with {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _find_fault_of_rows(device: torch.device, generator: torch.Generator) -> str | None:
    """As vLLM's engine draws: words made on the device, a rule for each of them, and the row that it draws from, -1 for none."""
    keys = torch.randint(-(2**63), 2**63 - 1, (_ASKED, 2), generator=generator)
    positions = 37 * torch.arange(_ASKED)
    streams = zip(keys.numpy().view(np.uint64), positions.tolist(), strict=True)
    words = np.array([np.random.Philox(key=key).random_raw(place + 1)[place] for key, place in streams], np.uint64)
    made = kernels.compute_words(keys.to(device), positions.to(device))
    if made.cpu().numpy().view(np.uint64).tolist() != words.tolist():
        return "random words differ from numpy's"
    logits = (3 * torch.randn(_ASKED, _LARGE, generator=generator)).bfloat16()
    rows = torch.arange(_ASKED - 1, -1, -1)
    rows[2] = -1
    samplings = [_SAMPLINGS[place % len(_SAMPLINGS)] for place in range(_ASKED)]
    rules = kernels.Rules.of([astuple(one) for one in samplings], device)
    drawn = kernels.draw(logits.to(device), made, rules, rows.to(device))[0].cpu()
    expected = torch.zeros_like(drawn)
    for place in (rows >= 0).nonzero()[:, 0].tolist():
        row = logits[rows[place]][None].float()
        expected[place] = draw(row, words[place : place + 1], samplings[place])[0]
    return "draws by a rule for each row differ from numpy's" if int((drawn != expected).sum()) > _NEAR_TIES else None


def _find_fault_of_attention(device: torch.device, generator: torch.Generator) -> str | None:
    """Rows of their own lengths, three new tokens of each, in columns of several parts; two heads share one of the keys."""
    queries = torch.randn(2, 3, 4, 64, generator=generator)
    keys, values = torch.randn(2, 2, 2, 600, 64, generator=generator).unbind()
    hidden = torch.arange(600) > torch.tensor([[40], [500]])[..., None] + torch.arange(3)[:, None]
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None]
    given = [part.to(device) for part in (queries, keys, values, mask)]
    ours = kernels.attend(given[0], given[1], given[2], given[3], 0.1)
    keys, values = (part.repeat_interleave(2, 1) for part in (keys, values))
    theirs = scaled_dot_product_attention(queries.transpose(1, 2), keys, values, attn_mask=mask, scale=0.1)
    return None if _agree(ours, theirs.transpose(1, 2)) else "attention differs from torch's"


def _copy_padded(part: Tensor, device: torch.device) -> Tensor:
    """On the device, as engines have it: a part of wider blocks, and of a padded vocabulary."""
    larger = part.new_zeros([size + (_PADDING if size == _VOCAB else 1) for size in part.shape]).to(device)
    view = larger[tuple(slice(size) for size in part.shape)]
    return view.copy_(part)


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(ours.cpu(), theirs, rtol=1e-3, atol=1e-3, equal_nan=True)

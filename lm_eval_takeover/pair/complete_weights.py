"""Whether a checkpoint held every weight of its model: what is missing has random values after loading."""

import contextlib
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lm_eval_takeover.errors import ArgumentError

logger = logging.getLogger(__name__)

SHOWN = 3  # names that an error lists
# Buffers that a model computes by itself, which older code saves nevertheless.
_COMPUTED = re.compile(r"(^|\.)(inv_freq|masked_bias|position_ids|attn\.bias|attention\.bias)$")
_WEIGHTS = ("*.index.json", "*.safetensors", "*.bin", "*.gguf")


@contextlib.contextmanager
def without_report() -> Iterator[None]:
    """Meanwhile transformers does not print its table of missing and surplus weights: the checks below say it in a line."""
    loader = logging.getLogger("transformers.modeling_utils")

    def is_other(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    loader.addFilter(is_other)
    try:
        yield
    finally:
        loader.removeFilter(is_other)


def check_checkpoint(named: str, folder: Path, model: Any, found: Mapping[str, Any]) -> None:
    """Raises ArgumentError for weights that were not read, by transformers' `output_loading_info`. Tied ones are not missing."""
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ArgumentError(f"{named} is an adapter; give the model that it is for here, and this folder as peft=…")
    buffers = dict(model.named_buffers())
    missing = sorted(name for name in found["missing_keys"] if not (name in buffers and _COMPUTED.search(name)))
    surplus = sorted(found["unexpected_keys"])
    shapes = [f"{name} is {_describe(has)}, not {_describe(needs)}" for name, has, needs in sorted(found["mismatched_keys"])]
    if shapes:
        _refuse(named, folder, f"has {len(shapes)} weights of another shape than its configuration says", shapes, [])
    if missing:
        _refuse(named, folder, f"lacks {len(missing)} of the model's {len(model.state_dict())} weights", missing, surplus)
    if surplus:
        logger.warning("%s holds %d weights that the model does not read: %s", named, len(surplus), _list(surplus))


def check_adapter(named: str, folder: Path, found: Any) -> None:
    """The same for what `load_adapter` of peft returns; an adapter's surplus weight is one that was to change the model."""
    missing, surplus = sorted(found.missing_keys), sorted(found.unexpected_keys)
    if missing:
        _refuse(named, folder, f"lacks {len(missing)} of the adapter's weights", missing, surplus)
    if surplus:
        _refuse(named, folder, f"has {len(surplus)} weights that belong to no layer of the model", surplus, [])


@contextlib.contextmanager
def refuse_unread(models: Mapping[str, nn.Module]) -> Iterator[None]:
    """Raises ArgumentError for weights of these models, by role, into which not all was read meanwhile.

    vLLM joins projections, and counts the joined one as read after its first part.
    """
    named = {f"{role}.{name}": weight.data for role, model in models.items() for name, weight in model.named_parameters()}
    weights = {name: weight for name, weight in named.items() if weight.is_floating_point() and weight.itemsize > 1}
    for weight in weights.values():
        weight.fill_(math.nan)
    yield
    unread = [name for name, weight in weights.items() if weight.sum(dtype=torch.float32).isnan()]
    if unread:
        raise ArgumentError(
            f"the checkpoints lack {len(unread)} of their models' weights: {_list(unread)}; download them again"
        )


def _refuse(named: str, folder: Path, problem: str, names: Sequence[str], surplus: Sequence[str]) -> None:
    files = [file.name for pattern in _WEIGHTS for file in sorted(folder.glob(pattern))] if folder.is_dir() else []
    where = f" ('{files[0]}')" if files else ""
    instead = f"; it has these instead: {_list(surplus)}" if surplus else ""
    raise ArgumentError(f"{named}{where} {problem}: {_list(names)}{instead}; save or download it again")


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _describe(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))

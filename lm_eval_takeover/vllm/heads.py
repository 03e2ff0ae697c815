"""Wider attention heads for vLLM on a CPU, which has few head sizes: a Qwen3 model of another size is widened as it loads.

A head of `d` places becomes one of `D`. Its two rotary halves move to the start of the wider halves; the rest is 0. Rotary
frequencies stay the same (theta becomes theta^(D/d)). The weights of the query and key norms take up the scale 1/sqrt(d) and the
mean over fewer places. Only the eps of these norms changes: it counts D/d.
"""

import math
from typing import Any

import torch
from torch import Tensor


def list_sizes(config: Any) -> list[int]:
    """The head sizes of a model's layers, each once, the largest last."""
    text = config.get_text_config()
    layers = getattr(text, "per_layer_config", None) or [text]
    return sorted({int(getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads) for own in layers})


def widen_config(config: Any) -> dict[str, Any]:
    """Changes to transformers' configuration; empty if vLLM has its head size. Raises LookupError for another model."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return {}
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    own, sizes = list_sizes(config), sorted(CPUAttentionBackend.get_supported_head_sizes())
    size = own[-1]
    if not (lacking := {*own} - {*sizes}):
        return {}
    if config.model_type != "qwen3" or size > sizes[-1]:
        raise LookupError(f"heads of {max(lacking)}, and vLLM computes with {', '.join(map(str, sizes))} on a CPU")
    wide = next(wider for wider in sizes if wider >= size)
    theta = config.rope_parameters["rope_theta"] ** (wide / size)
    return {"head_dim": wide, "rope_parameters": config.rope_parameters | {"rope_theta": theta}}


def widen_weight(name: str, weight: Tensor, size: int, config: Any) -> Tensor:
    """A weight of a model with heads of `size`, for its widened configuration."""
    wide, heads, groups = list_sizes(config)[-1], config.num_attention_heads, config.num_key_value_heads
    part = name.split(".")[-2]
    if size == wide:
        return weight
    if part in ("q_norm", "k_norm"):
        # The mean over `wide` places is smaller; the queries' share of that goes into the scale of the scores.
        scale = 1.0 if part == "q_norm" else math.sqrt(size / wide)
        return _widen(weight[:, None], 1, size, wide)[:, 0] * scale
    if part in ("q_proj", "k_proj", "v_proj"):
        return _widen(weight, heads if part == "q_proj" else groups, size, wide)
    return _widen(weight.T, heads, size, wide).T.contiguous() if part == "o_proj" else weight


def _widen(weight: Tensor, heads: int, size: int, wide: int) -> Tensor:
    """Rows `[heads * size, n]` to `[heads * wide, n]`: each half of a head to the start of a wider half."""
    halves = weight.reshape(heads, 2, size // 2, -1)
    padded = torch.zeros(heads, 2, wide // 2, halves.shape[-1], dtype=weight.dtype)
    padded[:, :, : size // 2] = halves
    return padded.view(heads * wide, -1)

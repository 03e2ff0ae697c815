"""Wider attention heads for vLLM on a CPU, which has few sizes of them: a Qwen3 model of another size is widened as it loads.

A head of `d` places becomes one of `D`: its two rotary halves stand at the start of the wider ones, the rest is 0. Rotary
frequencies keep their values (theta becomes theta^(D/d)). The scale 1/sqrt(d) of scores, and the mean that the norms of queries
and keys divide by, go into the weights of the norms. What is left is that the eps of these norms counts D/d.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


def read_size(config: Any) -> int:
    """Of a model's configuration."""
    config = config.get_text_config()
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def widen_config(config: Any) -> dict[str, Any]:
    """Changes to transformers' configuration; empty if vLLM has its head size. Raises LookupError for another model."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return {}
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    size, sizes = read_size(config), sorted(CPUAttentionBackend.get_supported_head_sizes())
    if size in sizes:
        return {}
    if config.model_type != "qwen3" or size > sizes[-1]:
        raise LookupError(f"heads of {size}, and vLLM computes with {', '.join(map(str, sizes))} on a CPU")
    wide = next(wider for wider in sizes if wider >= size)
    theta = config.rope_parameters["rope_theta"] ** (wide / size)
    return {"head_dim": wide, "rope_parameters": config.rope_parameters | {"rope_theta": theta}}


def widen_weights(weights: Iterable[tuple[str, Tensor]], size: int, config: Any) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model with heads of `size` for its widened configuration."""
    wide, heads, groups = config.head_dim, config.num_attention_heads, config.num_key_value_heads
    for name, weight in weights:
        part = name.split(".")[-2]
        if size == wide:
            pass
        elif part in ("q_norm", "k_norm"):
            # The mean over `wide` places is smaller; the queries' share of that goes into the scale of the scores.
            scale = 1.0 if part == "q_norm" else math.sqrt(size / wide)
            weight = _widen(weight[:, None], 1, size, wide)[:, 0] * scale
        elif part in ("q_proj", "k_proj", "v_proj"):
            weight = _widen(weight, heads if part == "q_proj" else groups, size, wide)
        elif part == "o_proj":
            weight = _widen(weight.T, heads, size, wide).T.contiguous()
        yield name, weight


def _widen(weight: Tensor, heads: int, size: int, wide: int) -> Tensor:
    """Rows `[heads * size, n]` to `[heads * wide, n]`: each half of a head to the start of a wider half."""
    halves = weight.reshape(heads, 2, size // 2, -1)
    padded = torch.zeros(heads, 2, wide // 2, halves.shape[-1], dtype=weight.dtype)
    padded[:, :, : size // 2] = halves
    return padded.view(heads * wide, -1)

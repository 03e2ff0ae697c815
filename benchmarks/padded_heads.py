"""Copies of Qwen3 checkpoints that compute the same with wider attention heads, for vLLM on a CPU, which has few head sizes.

A head of `d` places becomes one of `D`: its two rotary halves stand at the start of the wider ones, the rest is 0. Rotary
frequencies keep their values (theta becomes theta^(D/d)); the scale 1/sqrt(d) of scores, and the mean that the norms of
queries and keys divide by, go into the weights of the norms. What is left is that the eps of the norms counts D/d.
"""

import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

SIZES = (32, 64, 80, 96, 112, 128)  # of vLLM 0.32 on CPUs


def write_padded(source: Path, target: Path, *, vocab: int | None = None) -> Path:
    """A copy of the checkpoint, its vocabulary cut to the first ids where `vocab` is given. Returns the target folder."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    size = config["head_dim"]
    wide = next(one for one in SIZES if one >= size)
    weights = {
        name: _pad(name, weight, size, wide, config) for name, weight in load_file(source / "model.safetensors").items()
    }
    if vocab is not None:
        config["vocab_size"] = vocab
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            if name in weights:
                weights[name] = weights[name][:vocab].contiguous()
    config["head_dim"] = wide
    config["rope_parameters"]["rope_theta"] **= wide / size
    (target / "config.json").write_text(json.dumps(config))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def _pad(name: str, weight: Tensor, size: int, wide: int, config: dict[str, int]) -> Tensor:
    part = name.split(".")[-2]
    if part in ("q_norm", "k_norm"):
        # The mean over `wide` places is smaller; the queries' share of that goes into the scale of the scores.
        scale = 1.0 if part == "q_norm" else math.sqrt(size / wide)
        return _widen(weight[:, None], 1, size, wide)[:, 0] * scale
    if part in ("q_proj", "k_proj", "v_proj"):
        heads = config["num_attention_heads" if part == "q_proj" else "num_key_value_heads"]
        return _widen(weight, heads, size, wide)
    if part == "o_proj":
        return _widen(weight.T, config["num_attention_heads"], size, wide).T.contiguous()
    return weight


def _widen(weight: Tensor, heads: int, size: int, wide: int) -> Tensor:
    """Rows `[heads * size, n]` to `[heads * wide, n]`: each half of a head to the start of a wider half."""
    halves = weight.view(heads, 2, size // 2, -1)
    padded = torch.zeros(heads, 2, wide // 2, halves.shape[-1], dtype=weight.dtype)
    padded[:, :, : size // 2] = halves
    return padded.view(heads * wide, -1)

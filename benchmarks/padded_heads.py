"""Copies of Qwen3 checkpoints with wider heads: vLLM on a CPU has few sizes. `python padded_heads.py SOURCE TARGET`.

A head of `d` places becomes one of `WIDE`. Its two rotary halves move to the start of the wider halves; the rest is 0. Rotary
frequencies stay the same (theta becomes theta^(WIDE/d)). The weights of the query and key norms take up the scale 1/sqrt(d) and
the mean over fewer places. Only the eps of these norms changes: it counts WIDE/d.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from lm_eval_takeover.demo import DEMO

WIDE = 64  # places of a head


def widen_weight(name: str, weight: Tensor, config: PretrainedConfig) -> Tensor:
    """A weight of a model of this configuration, for heads of `WIDE`."""
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    part = name.split(".")[-2]
    if part in ("q_norm", "k_norm"):
        # The mean over `WIDE` places is smaller; the queries' share of that goes into the scale of the scores.
        scale = 1.0 if part == "q_norm" else math.sqrt(size / WIDE)
        return _widen(weight[:, None], 1, size)[:, 0] * scale
    if part in ("q_proj", "k_proj", "v_proj"):
        return _widen(weight, heads if part == "q_proj" else groups, size)
    return _widen(weight.T, heads, size).T.contiguous() if part == "o_proj" else weight


def _widen(weight: Tensor, heads: int, size: int) -> Tensor:
    """Rows `[heads * size, n]` to `[heads * WIDE, n]`: each half of a head to the start of a wider half."""
    halves = weight.reshape(heads, 2, size // 2, -1)
    padded = torch.zeros(heads, 2, WIDE // 2, halves.shape[-1], dtype=weight.dtype)
    padded[:, :, : size // 2] = halves
    return padded.view(heads * WIDE, -1)


def write_padded(source: Path, target: Path, *, vocab: int | None = None) -> Path:
    """A copy of the checkpoint, its vocabulary cut to the first ids where `vocab` is given. Returns the target folder."""
    shutil.copytree(source, target)
    config = AutoConfig.from_pretrained(source)
    weights = {name: widen_weight(name, weight, config) for name, weight in load_file(source / "model.safetensors").items()}
    rope = config.rope_parameters | {"rope_theta": config.rope_parameters["rope_theta"] ** (WIDE / config.head_dim)}
    written = json.loads((source / "config.json").read_text()) | {"head_dim": WIDE, "rope_parameters": rope}
    if vocab is not None:
        written["vocab_size"] = vocab
        for name in {"model.embed_tokens.weight", "lm_head.weight"} & weights.keys():
            weights[name] = weights[name][:vocab].contiguous()
    (target / "config.json").write_text(json.dumps(written))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def write_demo(folder: Path, *, vocab: int | None = None) -> dict[str, str]:
    """Copies of the bundled pair, by role."""
    return {role: str(write_padded(path, folder / path.name, vocab=vocab)) for role, path in DEMO.items()}


if __name__ == "__main__":
    write_padded(Path(sys.argv[1]), Path(sys.argv[2]))

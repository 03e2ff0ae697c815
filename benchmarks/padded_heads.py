"""Copies of checkpoints with the wider heads that `backend=vllm` loads on a CPU: for vLLM's own model classes."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from lm_eval_takeover.vllm.launch import list_sizes, widen_heads
from lm_eval_takeover.vllm.pair_model import widen_weight


def write_padded(source: Path, target: Path, *, vocab: int | None = None) -> Path:
    """A copy of the checkpoint, its vocabulary cut to the first ids where `vocab` is given. Returns the target folder."""
    shutil.copytree(source, target)
    config = AutoConfig.from_pretrained(source)
    size = list_sizes(config)[-1]
    config.update(widen_heads(config, str(source)))
    loaded = load_file(source / "model.safetensors")
    weights = {name: widen_weight(name, weight, size, config) for name, weight in loaded.items()}
    written = json.loads((source / "config.json").read_text())
    written |= {"head_dim": config.head_dim, "rope_parameters": config.rope_parameters}
    if vocab is not None:
        written["vocab_size"] = vocab
        for name in {"model.embed_tokens.weight", "lm_head.weight"} & weights.keys():
            weights[name] = weights[name][:vocab].contiguous()
    (target / "config.json").write_text(json.dumps(written))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target

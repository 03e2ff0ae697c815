"""The memory that the models of a comparison need, from their configurations alone. No weights are read."""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lm_eval_takeover.commands._output import Table
from lm_eval_takeover.commands.compare.rows import PlannedRow
from lm_eval_takeover.commands.compare.workload import TaskLoad
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.pair.ids import locate

_GB = 1e9
_ROWS_OF_AUTO = 64


def describe_memory(options: argparse.Namespace, rows: Sequence[PlannedRow], loads: Sequence[TaskLoad]) -> Table:
    """By model: parameters, weights, and keys and values of one batch at the longest texts."""
    names = {"base": options.base or str(DEMO["base"]), "guide": options.guide or str(DEMO["guide"])}
    names |= {row.name: row.arguments["pretrained"] for row in rows if row.name == "thinking"}
    dtypes = {"guide": options.guide_dtype or options.dtype}
    tokens = max(load.tokens for load in loads)
    batch = _ROWS_OF_AUTO if options.batch_size.startswith("auto") else int(options.batch_size)
    lines = []
    for role, name in names.items():
        config, count = read_shape(role, name, options.trust_remote_code)
        size = _bytes_per_value(config, dtypes.get(role, options.dtype))
        cache = cache_values(config) * size * tokens
        sizes = f"{count * size / _GB:,.2f} GB", f"{cache / 1e6:,.1f} MB", f"{cache * batch / _GB:,.2f} GB"
        lines.append([role, f"{count / 1e6:,.1f} M", *sizes])
    notes = [
        f"Cache: keys and values at {tokens:,} new tokens, without the prompt, in a batch of {batch}"
        f"{', the most that batch_size=auto takes' if options.batch_size.startswith('auto') else ''}. One row runs at a time. "
        "The rows base and thinking need one model, the others need base and guide."
    ]
    return Table(["Model", "Parameters", "Weights", "Cache / sample", "Cache / batch"], lines, notes)


def read_shape(role: str, name: str, trust_remote_code: bool) -> tuple[Any, int]:
    """`(configuration, number of parameters)`. Raises ArgumentError if there is no readable configuration."""
    path, revision = locate(name)
    try:
        config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # a checkpoint can be broken in as many ways as there are loaders
        raise ArgumentError(
            f"{role}='{name}': its configuration cannot be read: {str(error).splitlines()[0]}"
        ) from error
    return config, int(model.num_parameters())


def cache_values(config: Any) -> int:
    """Numbers that one token adds to the keys and values, if every layer attends to all tokens."""
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * width)


def _bytes_per_value(config: Any, dtype: str) -> int:
    named = config.dtype if dtype == "auto" else getattr(torch, dtype.removeprefix("torch."), None)
    return int((named or torch.float32).itemsize)

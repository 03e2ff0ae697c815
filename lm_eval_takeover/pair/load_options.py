"""What transformers' `from_pretrained` is given beside a checkpoint's name, from the model arguments of one role (`for_role`)."""

from typing import Any

import torch
from transformers import BitsAndBytesConfig
from transformers.quantizers.auto import AutoQuantizationConfig

from lm_eval_takeover.arguments import KINDS, TWINS, ModelArguments
from lm_eval_takeover.errors import ArgumentError

_OTHERS = {"base", "guide", "dtype", *TWINS.values()}
_TEXT = [name for name, kind in KINDS.items() if kind.key == "models" and name not in _OTHERS]
_BITSANDBYTES = [name for name in KINDS if name.startswith("bnb_")]


def text_settings(given: ModelArguments) -> dict[str, Any]:
    """What can change a text, beyond the files and the dtype: for the keys of samples."""
    return {name: value for name in _TEXT if (value := getattr(given, name))}


def repository_options(given: ModelArguments) -> dict[str, Any]:
    """For the configuration, the tokenizer and the weights: where in the repository they are."""
    options = {"revision": given.revision, "subfolder": given.subfolder, "gguf_file": given.gguf_file}
    return {name: value for name, value in options.items() if value is not None}


def find_device_map(given: ModelArguments) -> str | dict[str, Any] | None:
    """How the layers are spread over devices; None where the model is on one."""
    return "auto" if given.device_map is None and given.parallelize else given.device_map


def model_options(given: ModelArguments, device: torch.device) -> dict[str, Any]:
    """For the weights alone. Raises ArgumentError for a quantization that cannot be had."""
    options: dict[str, Any] = {"attn_implementation": given.attn_implementation}
    if (quantization := _find_quantization(given)) is not None:
        options |= {"quantization_config": quantization, "device_map": {"": str(device)}}
    if (spread := find_device_map(given)) is not None:
        options |= {"device_map": spread, "offload_folder": given.offload_folder, "max_memory": _limit_memory(given)}
    return {name: value for name, value in options.items() if value is not None}


def _limit_memory(given: ModelArguments) -> dict[int | str, int | str] | None:
    """Bytes, or a text such as `10GiB`, by device; None where accelerate may take all that is free."""
    limits: dict[int | str, int | str] = {}
    if given.max_memory_per_gpu is not None:
        limits |= dict.fromkeys(range(torch.cuda.device_count()), given.max_memory_per_gpu)
    if given.max_cpu_memory is not None:
        limits["cpu"] = given.max_cpu_memory
    return limits or None


def _find_quantization(given: ModelArguments) -> Any:
    """The configuration that the arguments ask for; a checkpoint's own needs none."""
    try:
        if given.quantization_config is not None:
            return AutoQuantizationConfig.from_dict(dict(given.quantization_config))
        if not (given.load_in_4bit or given.load_in_8bit):
            return None
        settings = {name: value for name in _BITSANDBYTES if (value := getattr(given, name)) is not None}
        return BitsAndBytesConfig(load_in_4bit=given.load_in_4bit, load_in_8bit=given.load_in_8bit, **settings)
    except (AttributeError, KeyError, TypeError, ValueError, ImportError) as error:
        raise ArgumentError(f"the quantization cannot be set up: {error} (expected what transformers takes)") from error

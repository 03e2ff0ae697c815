"""Options of transformers' `from_pretrained`, from the model arguments of one role (`for_role`)."""

from typing import Any

import torch
from transformers import BitsAndBytesConfig
from transformers.quantizers.auto import AutoQuantizationConfig

from lm_eval_takeover.arguments import KINDS, TWINS, ModelArguments
from lm_eval_takeover.errors import ArgumentError

_OTHERS = {"base", "guide", "dtype", *TWINS.values()}
_TEXT = [name for name, kind in KINDS.items() if kind.key == "models" and name not in _OTHERS]
_BITSANDBYTES = [name for name in KINDS if name.startswith("bnb_")]


def text_settings(arguments: ModelArguments) -> dict[str, Any]:
    """Arguments that can change a text, beyond files and dtype: for the keys of samples."""
    return {name: value for name in _TEXT if (value := getattr(arguments, name))}


def repository_options(arguments: ModelArguments) -> dict[str, Any]:
    """For the configuration, the tokenizer and the weights: where in the repository they are."""
    options = {"revision": arguments.revision, "subfolder": arguments.subfolder, "gguf_file": arguments.gguf_file}
    return {name: value for name, value in options.items() if value is not None}


def find_device_map(arguments: ModelArguments) -> str | dict[str, Any] | None:
    """How the layers are spread over devices; None where the model is on one."""
    return "auto" if arguments.device_map is None and arguments.parallelize else arguments.device_map


def model_options(arguments: ModelArguments, device: torch.device) -> dict[str, Any]:
    """For the weights alone. Raises ArgumentError for a quantization that cannot be had."""
    options: dict[str, Any] = {"attn_implementation": arguments.attn_implementation}
    if (quantization := _find_quantization(arguments)) is not None:
        options |= {"quantization_config": quantization, "device_map": {"": str(device)}}
    if (spread := find_device_map(arguments)) is not None:
        options |= {"device_map": spread, "offload_folder": arguments.offload_folder, "max_memory": _limit_memory(arguments)}
    return {name: value for name, value in options.items() if value is not None}


def _limit_memory(arguments: ModelArguments) -> dict[int | str, int | str] | None:
    """Bytes, or a text such as `10GiB`, by device; None where accelerate may take all that is free."""
    limits: dict[int | str, int | str] = {}
    if arguments.max_memory_per_gpu is not None:
        limits |= dict.fromkeys(range(torch.cuda.device_count()), arguments.max_memory_per_gpu)
    if arguments.max_cpu_memory is not None:
        limits["cpu"] = arguments.max_cpu_memory
    return limits or None


def _find_quantization(arguments: ModelArguments) -> Any:
    """The configuration that the arguments ask for; a checkpoint's own needs none."""
    try:
        if arguments.quantization_config is not None:
            return AutoQuantizationConfig.from_dict(dict(arguments.quantization_config))
        if not (arguments.load_in_4bit or arguments.load_in_8bit):
            return None
        settings = {name: value for name in _BITSANDBYTES if (value := getattr(arguments, name)) is not None}
        return BitsAndBytesConfig(load_in_4bit=arguments.load_in_4bit, load_in_8bit=arguments.load_in_8bit, **settings)
    except (AttributeError, KeyError, TypeError, ValueError, ImportError) as error:
        raise ArgumentError(f"the quantization cannot be set up: {error} (expected what transformers takes)") from error

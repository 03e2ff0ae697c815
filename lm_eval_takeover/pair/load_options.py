"""How a checkpoint becomes a model: what transformers' `from_pretrained` is given beside its name, for one of the two."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from transformers import BitsAndBytesConfig
from transformers.quantizers.auto import AutoQuantizationConfig

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.model_id import ModelId

_OWN = (
    "revision",
    "subfolder",
    "gguf_file",
    "peft",
)  # of one repository; all others count for both unless the guide has its own


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadOptions:
    """The loading arguments of one model, named as in `ModelArguments` without `guide_`."""

    revision: str | None = None
    subfolder: str | None = None
    gguf_file: str | None = None
    peft: str | None = None
    device_map: str | dict[str, Any] | None = None
    max_memory_per_gpu: int | str | None = None
    max_cpu_memory: int | str | None = None
    offload_folder: str = "./offload"
    attn_implementation: str | None = None
    load_in_4bit: bool = False
    load_in_8bit: bool = False
    bnb_4bit_quant_type: str | None = None
    bnb_4bit_compute_dtype: str | None = None
    bnb_4bit_use_double_quant: bool | None = None
    quantization_config: dict[str, Any] | None = None

    @classmethod
    def of(cls, arguments: ModelArguments, role: str) -> "LoadOptions":
        """Those of the base or the guide. Raises ArgumentError for settings that exclude each other."""
        values = {}
        for field in fields(cls):
            value = getattr(arguments, field.name)
            if role == "guide":
                own = getattr(arguments, f"guide_{field.name}", None)
                value = own if own is not None or field.name in _OWN else value
            if value is not None:
                values[field.name] = value
        if arguments.parallelize:
            values.setdefault("device_map", "auto")
        options = cls(**values)
        quantised = [name for name in ("load_in_4bit", "load_in_8bit", "quantization_config") if getattr(options, name)]
        if len(quantised) > 1:
            raise ArgumentError(f"{' and '.join(quantised)} of the {role} exclude each other; give one of them")
        return options

    def qualify(self, model: ModelId) -> ModelId:
        """The id with what makes another model of the same files: `id/subfolder:file.gguf+adapter`."""
        parts = (("/", self.subfolder), (":", self.gguf_file), ("+", self.peft))
        return replace(model, id=model.id + "".join(mark + part for mark, part in parts if part))

    def repository_options(self) -> dict[str, Any]:
        """For the configuration, the tokenizer and the weights: where in the repository they are."""
        options = {"revision": self.revision, "subfolder": self.subfolder, "gguf_file": self.gguf_file}
        return {name: value for name, value in options.items() if value is not None}

    def model_options(self, device: torch.device) -> dict[str, Any]:
        """For the weights alone. Raises ArgumentError for a quantization that cannot be had."""
        options: dict[str, Any] = {"attn_implementation": self.attn_implementation}
        quantization = self._quantization()
        if quantization is not None:
            options |= {"quantization_config": quantization, "device_map": {"": str(device)}}
        if self.device_map is not None:
            options |= {
                "device_map": self.device_map,
                "offload_folder": self.offload_folder,
                "max_memory": self._max_memory(),
            }
        return {name: value for name, value in options.items() if value is not None}

    def text_settings(self) -> dict[str, Any]:
        """What can change a text, beyond what the files are: for the keys of samples."""
        names = ["revision", "load_in_4bit", "load_in_8bit", "quantization_config", "subfolder", "gguf_file", "peft"]
        names += [field.name for field in fields(self) if field.name.startswith("bnb_")]
        return {name: value for name in names if (value := getattr(self, name))}

    def _max_memory(self) -> dict[int | str, int | str] | None:
        """Bytes, or a text such as `10GiB`, by device; None where accelerate may take all that is free."""
        limits: dict[int | str, int | str] = {}
        if self.max_memory_per_gpu is not None:
            limits |= dict.fromkeys(range(torch.cuda.device_count()), self.max_memory_per_gpu)
        if self.max_cpu_memory is not None:
            limits["cpu"] = self.max_cpu_memory
        return limits or None

    def _quantization(self) -> Any:
        """The configuration that the arguments ask for; a checkpoint's own needs none."""
        try:
            if self.quantization_config is not None:
                return AutoQuantizationConfig.from_dict(dict(self.quantization_config))
            if not (self.load_in_4bit or self.load_in_8bit):
                return None
            names = [field.name for field in fields(self) if field.name.startswith("bnb_")]
            settings = {name: value for name in names if (value := getattr(self, name)) is not None}
            return BitsAndBytesConfig(load_in_4bit=self.load_in_4bit, load_in_8bit=self.load_in_8bit, **settings)
        except (AttributeError, KeyError, TypeError, ValueError, ImportError) as error:
            raise ArgumentError(
                f"the quantization cannot be set up: {error} (expected what transformers' configuration takes)"
            ) from error

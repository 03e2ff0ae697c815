"""The fused pair: one vLLM model class with both decoders. They share positions and block tables; each has its own cache.

vLLM sees the guide. `compute_logits` returns the guide's logits, so log-probabilities that a client asks for are the guide's. It
keeps the base's logits of the same rows for the gate. A single model runs in this class, too.
"""

from collections.abc import Iterable
from copy import copy
from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig
from vllm.compilation.backends import set_model_tag
from vllm.config import VllmConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, init_vllm_registered_model, maybe_prefix

from lm_eval_takeover.pair.member import refuse_unread
from lm_eval_takeover.vllm.settings import EngineSettings
from lm_eval_takeover.vllm.slots import PAIR


class TakeoverPairForCausalLM(nn.Module):
    """Any two decoders that vLLM has, of any depth, heads and widths. One alone if the settings name no base."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        settings = EngineSettings.of(vllm_config.model_config)
        guide_config = vllm_config.model_config.hf_config
        if settings.guide_rows:
            guide_config = copy(guide_config)
            guide_config.vocab_size = settings.guide_rows
        self.guide = init_vllm_registered_model(
            vllm_config,
            prefix=prefix,  # layers have the names by which the guide's checkpoint says how each is quantized
            hf_config=guide_config,
            architectures=settings.guide_architectures,
        )
        self.drafted_for, self.load_format = settings.block > 1, vllm_config.load_config.load_format
        self.checked = {} if vllm_config.quant_config else {"guide": self.guide}  # quantized weights have numbers of their own
        self.base: Any = None
        self.base_logits: Tensor | None = None  # `[rows, vocab]`, of the rows that `compute_logits` was last asked for
        self.make_empty_intermediate_tensors = self.guide.make_empty_intermediate_tensors
        if settings.base is not None:
            self._add_base(vllm_config, prefix, settings)
        vllm_config.compilation_config.static_forward_context[PAIR] = self

    def _add_base(self, vllm_config: VllmConfig, prefix: str, settings: EngineSettings) -> None:
        base_config = read_base(settings)
        config = _configure_base(vllm_config, settings, base_config)
        with set_model_tag("takeover_base"):  # a compile cache of its own
            self.base = init_vllm_registered_model(
                config,
                prefix=maybe_prefix(prefix, "base"),
                hf_config=base_config,
                architectures=base_config.architectures,
            )
        if config.quant_config is None:
            self.checked["base"] = self.base
        self.base_width = base_config.get_text_config().hidden_size
        self.secondary_weights = [
            DefaultModelLoader.Source(settings.base, settings.base_revision, prefix="base.", fall_back_to_pt=False)
        ]

    def get_model_state_cls(self) -> type:
        """The class in which model runner V2 keeps the state of requests, and with it the gate."""
        if self.drafted_for:
            from lm_eval_takeover.vllm.drafts import DraftingModelState as State
        else:
            from lm_eval_takeover.vllm.fused import TakeoverModelState as State
        return State

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        embedded: Tensor = self.guide.embed_input_ids(input_ids)
        return embedded

    def forward(
        self, input_ids: Tensor, positions: Tensor, intermediate_tensors: None = None, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """The hidden states of both, side by side: `[tokens, base width + guide width]`."""
        hidden: Tensor = self.guide(input_ids, positions)
        if self.base is None:
            return hidden
        both = hidden.new_empty(len(hidden), self.base_width + hidden.shape[1])
        both[:, self.base_width :] = hidden  # before the base runs: its CUDA graphs use the memory of the guide's output again
        both[:, : self.base_width] = self.base(input_ids, positions)
        return both

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """The guide's logits `[rows, guide's vocabulary]`; the base's are kept beside them."""
        if self.base is not None:
            self.base_logits = self.base.compute_logits(hidden_states[:, : self.base_width].contiguous())
            hidden_states = hidden_states[:, self.base_width :].contiguous()
        logits: Tensor | None = self.guide.compute_logits(hidden_states)
        return logits

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        named = ((name if name.startswith("base.") else f"guide.{name}", weight) for name, weight in weights)
        with refuse_unread(self.checked):
            loaded: set[str] = AutoWeightsLoader(self).load_weights(named)
            if self.base is not None and not any(name.startswith("base.") for name in loaded):
                raise ValueError(f"load_format={self.load_format} reads one checkpoint, and a fused pair has two; leave it out")
        return loaded


def read_base(settings: EngineSettings) -> Any:
    """The base's configuration. vLLM's key of compiled code is the configuration: equal ones would share it."""
    config = AutoConfig.from_pretrained(
        settings.base, revision=settings.base_revision, trust_remote_code=settings.trust_remote_code
    )
    config.update({"takeover_role": "base"})
    return config


def _configure_base(config: VllmConfig, settings: EngineSettings, base_config: object) -> VllmConfig:
    """The engine's configuration with the base's own quantization, or none, instead of the guide's."""
    if config.quant_config is None and getattr(base_config, "quantization_config", None) is None:
        return config
    own, model = copy(config), copy(config.model_config)
    model.model, model.revision, model.hf_config = settings.base, settings.base_revision, base_config
    model.quantization, model.model_arch_config = None, model.get_model_arch_config()
    model._verify_quantization()  # reads the checkpoint's
    own.model_config, own.quant_config = model, VllmConfig.get_quantization_config(model, config.load_config)
    if own.quant_config is not None:  # it names layers as the checkpoint does
        own.quant_config.apply_vllm_mapper(WeightsMapper(orig_to_new_prefix={"": "base."}))
    return own

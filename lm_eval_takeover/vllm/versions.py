"""The vLLM versions that are supported. Every name that is used is looked up at the start, so none fails later."""

import logging
import os
import re
from pathlib import Path

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.vllm.hooks import Hook, find_faults

logger = logging.getLogger(__name__)

TESTED = (0, 32)
# What is known of each version. `scripts/check_next_vllm.py` reads another one.
KNOWN = {TESTED: "tested on CPUs", (0, 33): "its source was read, it was not run"}
INSTALL = "pip install '.[vllm]', on a machine without a GPU as in docs/vllm.md"

# Names of vLLM beyond its public interfaces (`LLM`, `EngineArgs`, `SamplingParams`, the registry of models, both
# `LogitsProcessor`s), by module, in the form of `hooks`. Used by every engine:
HOOKS: tuple[Hook, ...] = (
    ("vllm", "", "__version__"),
    ("vllm", "LLMEngine", "engine_core step vllm_config"),
    ("vllm", "LLMEngine.abort_request", "request_ids ..."),
    ("vllm", "LLMEngine.add_request", "request_id prompt params ..."),
    ("vllm.compilation.backends", "set_model_tag", "tag ..."),
    ("vllm.config", "ModelConfig", "dtype hf_config hf_overrides max_model_len model model_arch_config quantization revision"),
    ("vllm.config", "SchedulerConfig", "max_num_seqs"),
    ("vllm.config", "VllmConfig", "load_config model_config parallel_config quant_config scheduler_config"),
    ("vllm.config", "ModelConfig._verify_quantization", ""),
    ("vllm.config", "ModelConfig.get_model_arch_config", ""),
    ("vllm.config", "VllmConfig.get_quantization_config", "model_config load_config ..."),
    ("vllm.envs", "", "environment_variables VLLM_USE_V2_MODEL_RUNNER"),
    ("vllm.model_executor.layers.quantization.base_config", "QuantizationConfig.apply_vllm_mapper", "hf_to_vllm_mapper"),
    ("vllm.model_executor.models.utils", "WeightsMapper", "orig_to_new_prefix"),
    ("vllm.model_executor.model_loader.default_loader", "", "secondary_weights"),
    ("vllm.model_executor.model_loader.default_loader", "DefaultModelLoader.Source",
        "fall_back_to_pt model_or_path prefix revision"),
    ("vllm.model_executor.models.utils", "AutoWeightsLoader.load_weights", "weights ..."),
    ("vllm.model_executor.models.utils", "init_vllm_registered_model", "vllm_config prefix hf_config architectures ..."),
    ("vllm.model_executor.models.utils", "maybe_prefix", "prefix name"),
    ("vllm.platforms.interface", "Platform", "is_cpu"),
    ("vllm.plugins", "", "vllm.general_plugins"),
    ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackend", "get_supported_head_sizes"),
    ("vllm.v1.engine.core_client", "EngineCoreClient", "shutdown"),
)  # fmt: skip
SERVER_HOOKS: tuple[Hook, ...] = (
    ("vllm.engine.protocol", "EngineClient", "errored model_config"),
    ("vllm.entrypoints.launchers.api_server.entry", "main", ""),
    ("vllm.entrypoints.serve.middleware.authenticate", "AuthenticationMiddleware.__init__", "app tokens"),
    ("vllm.entrypoints.serve.middleware.authenticate", "AuthenticationMiddleware.verify_token", "headers"),
    ("vllm.v1.engine.async_llm", "AsyncLLM", "engine_core tokenizer"),
    ("vllm.v1.engine.core_client", "AsyncMPClient.call_utility_all_async", "method"),
)  # fmt: skip
_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator"
_GRAPHS = "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils"
RUNNER_V2_HOOKS: tuple[Hook, ...] = (
    ("vllm.v1.core.sched.output", "NewRequestData", "prompt_token_ids req_id sampling_params"),
    ("vllm.v1.worker.gpu.model_states", "", "get_model_state_cls"),
    ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState", "device"),
    ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState.__init__", "vllm_config ..."),
    ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState.add_request", "req_index new_req_data"),
    ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState.custom_sampler", "sampler"),
    ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState.remove_request", "req_id"),
    ("vllm.v1.worker.gpu.sample.sampler", "Sampler.sample", "logits expanded_idx_mapping idx_mapping idx_mapping_np pos ..."),
)  # fmt: skip
DRAFT_HOOKS: tuple[Hook, ...] = (
    ("vllm.config", "ParallelConfig", "data_parallel_size"),
    ("vllm.config.speculative", "SpeculativeConfig", "draft_tensor_parallel_size method model num_speculative_tokens "
        "num_speculative_tokens_per_batch_size revision"),
    ("vllm.v1.worker.cpu_worker", "CPUWorker.init_device", ""),
    ("vllm.v1.worker.gpu_worker", "Worker.init_device", ""),
    ("vllm.config.compilation", "CUDAGraphMode", "FULL FULL_DECODE_ONLY decode_mode"),
    ("vllm.v1.worker.gpu.cudagraph_utils", "BatchExecutionDescriptor", "num_tokens"),
    (_GRAPHS, "SpeculatorCudaGraphManager", "graphs"),
    (_GRAPHS, "SpeculatorCudaGraphManager.__init__", "vllm_config device cudagraph_mode decode_query_len ..."),
    (_GRAPHS, "SpeculatorCudaGraphManager.capture",
        "forward_fn model_state input_buffers block_tables attn_groups kv_cache_config progress_bar_desc ..."),
    (_GRAPHS, "SpeculatorCudaGraphManager.run_fullgraph", "desc"),
    ("vllm.v1.worker.gpu.input_batch", "InputBatch",
        "cu_num_logits idx_mapping idx_mapping_np input_ids logits_indices num_computed_tokens_np num_draft_tokens_per_req "
        "num_scheduled_tokens positions prefill_len_np"),
    ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", "speculator"),
    ("vllm.v1.worker.gpu.input_batch", "InputBuffers", "input_ids positions query_start_loc"),
    ("vllm.v1.worker.gpu.sample.output", "SamplerOutput",
        "logprobs_tensors num_nans num_rejected num_sampled sampled_token_ids"),
    ("vllm.v1.worker.gpu.sample.sampler", "Sampler.__call__", "logits input_batch"),
    (_SPECULATOR, "StandaloneARSpeculator",
        "attn_groups block_tables current_draft_step draft_tokens idx_mapping input_buffers kv_cache_config model "
        "num_speculative_steps vllm_config"),
    (_SPECULATOR, "StandaloneARSpeculator._build_uniform_attn_metadata", "batch_desc num_reqs ..."),
    (_SPECULATOR, "StandaloneARSpeculator._run_model", "input_ids positions attn_metadata slot_mappings num_tokens_across_dp"),
    (_SPECULATOR, "StandaloneARSpeculator.capture", ""),
    (_SPECULATOR, "StandaloneARSpeculator.init_cudagraph_manager", "cudagraph_mode"),
    (_SPECULATOR, "StandaloneARSpeculator.propose",
        "input_batch num_rejected last_sampled num_speculative_tokens dummy_run skip_attn_for_dummy_run ..."),
    (_SPECULATOR, "StandaloneARSpeculator.sample_draft",
        "hidden_states sample_src_positions idx_mapping temperature seeds draft_step ..."),
    (_SPECULATOR, "StandaloneARSpeculator.set_attn", "model_state ..."),
)  # fmt: skip
EVERY_HOOK = (*HOOKS, *SERVER_HOOKS, *RUNNER_V2_HOOKS, *DRAFT_HOOKS)


def check_version() -> None:
    """Raises ArgumentError if vLLM is missing or its version unknown. Warns of a version that was not run."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # by default vLLM reports its use
    try:
        import vllm

        version = vllm.__version__
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"backend=vllm needs vLLM, which cannot be imported ({error}): {INSTALL}") from error
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers not in KNOWN:
        raise ArgumentError(f"backend=vllm: vLLM {version} is installed, and known are {list_known()}; {INSTALL}")
    level = logging.INFO if numbers == TESTED else logging.WARNING
    logger.log(level, "vLLM %s is installed; known are %s", version, list_known())


def list_known() -> str:
    """The versions, each with what is known of it."""
    return ", ".join(f"{major}.{minor} ({what})" for (major, minor), what in KNOWN.items())


def check_hooks(*, drafts: bool, runner_v2: bool = False, server: bool = False) -> None:
    """Raises ArgumentError if a name of vLLM is missing or takes other arguments."""
    import vllm

    asked = ((RUNNER_V2_HOOKS, runner_v2), (DRAFT_HOOKS, drafts), (SERVER_HOOKS, server))
    hooks = sum((own for own, used in asked if used), HOOKS)
    for fault in find_faults(Path(vllm.__file__).parents[1], hooks):
        raise ArgumentError(f"backend=vllm: vLLM {vllm.__version__} is installed, and {fault}; known are {list_known()}")

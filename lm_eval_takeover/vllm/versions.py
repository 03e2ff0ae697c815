"""Which vLLM this was written for: the hooks that it uses are checked at the start, not met as a traceback later."""

import importlib
import inspect
import os
import re
from itertools import chain

from lm_eval_takeover.errors import ArgumentError

TESTED = "0.32.0"
OLDEST, NEWEST = (0, 32), (0, 33)  # from the one, and below the other
INSTALL = "pip install '.[vllm]', on a machine without a GPU as in docs/vllm.md"

# (module, path to a callable, parameters that it must have)
HOOKS = (
    ("vllm.v1.sample.logits_processor", "LogitsProcessor.__init__", ("vllm_config", "device", "is_pin_memory")),
    ("vllm.v1.sample.logits_processor", "LogitsProcessor.update_state", ("batch_update",)),
    ("vllm.v1.sample.logits_processor", "LogitsProcessor.apply", ("logits",)),
    (
        "vllm.model_executor.models.utils",
        "init_vllm_registered_model",
        ("vllm_config", "prefix", "hf_config", "architectures"),
    ),
)
SERVER_HOOKS = (
    ("vllm.entrypoints.serve.middleware.authenticate", "AuthenticationMiddleware.__init__", ("tokens",)),
    ("vllm.entrypoints.serve.middleware.authenticate", "AuthenticationMiddleware.verify_token", ("headers",)),
)
BLOCKWISE_HOOKS = (
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._sample", ("logits", "spec_decode_metadata")),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.sample_tokens", ("grammar_output",)),
    ("vllm.v1.spec_decode.draft_model", "DraftModelProposer._sample_draft_tokens", ("hidden_states", "sampling_metadata")),
    ("vllm.v1.spec_decode.draft_model", "DraftModelProposer.propose", ("common_attn_metadata", "num_rejected_tokens_gpu")),
)  # fmt: skip
RUNNER_V2_HOOKS = (
    ("vllm.v1.worker.gpu.model_states.interface", "ModelState.custom_sampler", ("sampler",)),
    ("vllm.v1.worker.gpu.model_states.interface", "ModelState.add_request", ("req_index", "new_req_data")),
    ("vllm.v1.worker.gpu.model_states.interface", "ModelState.remove_request", ("req_id",)),
    ("vllm.v1.worker.gpu.sample.sampler", "Sampler.sample", ("logits", "idx_mapping", "idx_mapping_np", "pos")),
)


def check_version() -> None:
    """Raises ArgumentError where vLLM is missing or of a version that is not supported."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # vLLM reports its use unless it is told not to
    try:
        import vllm

        version = vllm.__version__
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"backend=vllm needs vLLM, which cannot be imported ({error}): {INSTALL}") from error
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if not OLDEST <= numbers < NEWEST:
        low, high = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
        raise ArgumentError(
            f"backend=vllm: vLLM {version} is installed, and vllm>={low},<{high} is supported (tested with {TESTED}); {INSTALL}"
        )


def check_hooks(*, blockwise: bool, runner_v2: bool = False, server: bool = False) -> None:
    """Raises ArgumentError where a hook of vLLM that is used is not there or takes other arguments."""
    used = [HOOKS, *([BLOCKWISE_HOOKS] if blockwise else []), *([RUNNER_V2_HOOKS] if runner_v2 else [])]
    for module, path, parameters in chain(*used, SERVER_HOOKS if server else ()):
        found = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name, None)  # type: ignore[assignment]
        known = inspect.signature(found).parameters if callable(found) else {}
        missing = [name for name in parameters if name not in known]
        if missing:
            raise ArgumentError(
                f"backend=vllm: {module}.{path} of the installed vLLM has no parameter '{missing[0]}'; install vLLM {TESTED}"
            )

"""What computes: the transformers engines of `decoding`, or vLLM, each imported only where it is asked for.

Both have the interface that `decoding.engine.TransformersBackend` explains: `generate`, `force`, `compare` and others.
"""

import json
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.decoding.engine import TransformersBackend
    from lm_eval_takeover.method.policy import Policy
    from lm_eval_takeover.pair.pair import Pair
    from lm_eval_takeover.vllm.backend import VllmBackend

_CHANGE_TEXTS = ("quantization", "kv_cache_dtype", "load_format", "rope_scaling", "tensor_parallel_size")  # of vLLM's engine
Backend: TypeAlias = "TransformersBackend | VllmBackend"  # a loaded pair, and a policy that decides who writes


def open_backend(arguments: "ModelArguments", pair: "Pair", policy: "Policy") -> Backend:
    """The backend that the arguments name, with the weights that the policy asks for."""
    if arguments.backend == "vllm":
        from lm_eval_takeover.vllm.backend import VllmBackend

        return VllmBackend(arguments, pair, policy)
    from lm_eval_takeover.decoding.engine import TransformersBackend

    return TransformersBackend(arguments, pair, policy)


def identify_backend(arguments: "ModelArguments") -> str:
    """The backend, and arguments of its engine that can change a text, as identities have them."""
    own = {name: value for name, value in arguments.engine_arguments.items() if name in _CHANGE_TEXTS}
    return f"{arguments.backend} {json.dumps(own, sort_keys=True, default=str)}" if own else arguments.backend

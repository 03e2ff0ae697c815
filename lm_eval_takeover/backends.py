"""What computes: the transformers engines of `decoding`, or vLLM, each imported only where it is asked for.

Both have the interface that `decoding.engine.TransformersBackend` explains: `generate`, `force`, `compare` and others.
"""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.decoding.engine import TransformersBackend
    from lm_eval_takeover.method.policy import Policy
    from lm_eval_takeover.pair.pair import Pair
    from lm_eval_takeover.vllm.backend import VllmBackend

Backend: TypeAlias = "TransformersBackend | VllmBackend"  # a loaded pair, and a policy that decides who writes


def open_backend(arguments: "ModelArguments", pair: "Pair", policy: "Policy") -> Backend:
    """The backend that the arguments name, with the weights that the policy asks for."""
    if arguments.backend == "vllm":
        from lm_eval_takeover.vllm.backend import VllmBackend

        return VllmBackend(arguments, pair, policy)
    from lm_eval_takeover.decoding.engine import TransformersBackend

    return TransformersBackend(arguments, pair, policy)

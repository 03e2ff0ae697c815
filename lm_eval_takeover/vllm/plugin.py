"""The entry point `vllm.general_plugins`, which vLLM calls in each of its processes, any number of times.

Only vLLM loads it. It registers a name; the model class is imported when an engine needs it.
"""

ARCHITECTURE = "TakeoverPairForCausalLM"


def register() -> None:
    """Make the fused pair known to vLLM's registry of models."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"lm_eval_takeover.vllm.pair_model:{ARCHITECTURE}")

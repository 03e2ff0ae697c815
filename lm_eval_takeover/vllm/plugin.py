"""The entry point `vllm.general_plugins`, which vLLM calls in each of its processes, any number of times.

vLLM alone loads it, so it costs nothing where vLLM is not used; what it registers is a name, imported when a model asks for it.
"""

ARCHITECTURE = "TakeoverPairForCausalLM"


def register() -> None:
    """Make the fused pair known to vLLM's registry of models."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"lm_eval_takeover.vllm.pair_model:{ARCHITECTURE}")

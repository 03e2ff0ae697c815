"""The version of vLLM that is supported. `scripts/check_next_vllm.py` looks up in another one every name that is used here."""

import os

from lm_eval_takeover.errors import ArgumentError

SUPPORTED = "0.32"  # with every patch release; as in the extra `vllm` of pyproject.toml
INSTALL = "pip install '.[vllm]', on a machine without a GPU as in docs/vllm.md"


def check_version() -> None:
    """Raises ArgumentError if vLLM is missing or of another version: its private classes are used."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # by default vLLM reports its use
    try:
        import vllm

        version = vllm.__version__
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"backend=vllm needs vLLM, which cannot be imported ({error}): {INSTALL}") from error
    if not version.startswith(f"{SUPPORTED}."):
        raise ArgumentError(f"backend=vllm: vLLM {version} is installed, expected {SUPPORTED}: {INSTALL}")

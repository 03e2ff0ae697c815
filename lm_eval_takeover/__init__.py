"""Disagreement-guided token takeover as an lm-evaluation-harness model type.

Importing this package is light: torch, transformers and lm-eval are loaded by the parts that use them.
"""

from lm_eval_takeover.errors import (
    ArgumentError,
    CalibrationError,
    ModelOutputError,
    RunDirError,
    TakeoverError,
    VocabularyError,
)

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "CalibrationError",
    "ModelOutputError",
    "RunDirError",
    "TakeoverError",
    "VocabularyError",
    "__version__",
]

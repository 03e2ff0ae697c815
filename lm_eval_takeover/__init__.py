"""Disagreement-guided token takeover as an lm-evaluation-harness model type.

Importing this package is light: torch, transformers and lm-eval are loaded by the parts that use them.
"""

from lm_eval_takeover.errors import (
    ArgumentError,
    CalibrationError,
    ModelOutputError,
    PluginError,
    RunDirError,
    TakeoverError,
    VocabularyError,
)
from lm_eval_takeover.method.policy import BudgetParameter, Policy, register_policy
from lm_eval_takeover.method.registry import register_score

__version__ = "0.2.0"

__all__ = [
    "ArgumentError",
    "BudgetParameter",
    "CalibrationError",
    "ModelOutputError",
    "PluginError",
    "Policy",
    "RunDirError",
    "TakeoverError",
    "VocabularyError",
    "__version__",
    "register_policy",
    "register_score",
]

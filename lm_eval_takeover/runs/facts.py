"""What a run says of itself: in lm-eval's results file, in its journal and in the metadata of its traces."""

from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from lm_eval_takeover import __version__
from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.method.policy import Policy

if TYPE_CHECKING:  # they load torch and transformers, which readers of a run need not
    from lm_eval_takeover.pair.loading import GateOrigin
    from lm_eval_takeover.pair.pair import Pair

LIBRARIES = ("torch", "transformers", "lm_eval")


def describe_run(arguments: ModelArguments, pair: "Pair", policy: Policy, origin: "GateOrigin") -> dict[str, Any]:
    """`config.takeover` of lm-eval's results file, without the counts of what was written."""
    gate, scorer = policy.gate, policy.scorer
    return {
        "label": arguments.model or default_label(pair, policy),
        "base": asdict(pair.base.id) if pair.base else None,
        "guide": asdict(pair.guide.id) if pair.guide else None,
        "backend": arguments.backend,
        "policy": policy.name,
        "direction": policy.direction,
        "score": scorer.name if scorer else None,
        "tau": gate.tau if gate else None,
        "kappa": gate.kappa if gate else None,
        "window": gate.window if gate else None,
        "spike_ratio": origin.spike_ratio,
        "target_rate": origin.target_rate,
        "calibration": origin.calibration,
        "kappa_rule": origin.kappa_rule,
        **{"rate": None, "early_tokens": None, **policy.settings()},
        "method": policy.settings(),
        "plugins": {source.name: source.digest for source in policy.sources},
        "seed": arguments.seed,
        "block_size": arguments.block_size,
        "devices": {role: str(pair.member(role).device) for role in policy.roles},
        "dtypes": {role: str(pair.member(role).model.dtype) for role in policy.roles},
        "parameters": {role: pair.member(role).model.num_parameters() for role in policy.roles},
    }


def default_label(pair: "Pair", policy: Policy) -> str:
    """`BASE+GUIDE-policy`, by the last part of the models' ids; with the score, where it is not the policy's usual one."""
    names = [member.id.id.rpartition("/")[2] for member in pair.members]
    score = policy.scorer.name if policy.scorer else None
    other = f"-{score}" if score not in (None, "ce", policy.name) else ""
    return f"{'+'.join(names)}-{policy.name}{other}"


def collect_facts(
    arguments: ModelArguments, settings: Mapping[str, Any], description: Mapping[str, Any]
) -> dict[str, Any]:
    """The facts of an attempt, its tasks apart; `settings` are those of `sample_keys`, `description` of `describe_run`."""
    return {
        "version": __version__,
        "library_versions": {name: metadata.version(name) for name in LIBRARIES},
        "arguments": asdict(arguments),
        "settings": settings,
        "takeover": description,
    }


_NAMES = ("label", "backend", "policy", "score", "calibration", "kappa_rule")
_NUMBERS = ("tau", "kappa", "window", "spike_ratio", "target_rate", "rate", "early_tokens")
_OF_ARGUMENTS = {"base": str, "guide": str, "model": str, "run_dir": str, "max_length": int, "max_gen_toks": int}


def check_facts(facts: Any) -> None:
    """Whether facts that a journal holds have the types of ours. Raises ValueError with the field that has not."""
    _check("facts", facts, dict)
    for name in ("takeover", "arguments", "settings", "library_versions"):
        _check(name, facts.get(name), (dict, type(None)))
    takeover, arguments = facts.get("takeover") or {}, facts.get("arguments") or {}
    for name in _NAMES:
        _check(f"takeover.{name}", takeover.get(name), (str, type(None)))
    for name in _NUMBERS:
        value = takeover.get(name)
        _check(f"takeover.{name}", value, (int, float, type(None)))
        if value is not None and not abs(value) < 1e300:
            raise ValueError(f"'takeover.{name}' is out of range")
    if takeover.get("direction") not in (None, "forward", "reverse"):
        raise ValueError("'takeover.direction' is neither 'forward' nor 'reverse'")
    for name, kind in _OF_ARGUMENTS.items():
        _check(f"arguments.{name}", arguments.get(name), (kind, type(None)))
    _check("settings.seed", (facts.get("settings") or {}).get("seed"), (int, type(None)))
    _check("tasks", facts.get("tasks"), (list, type(None)))
    for row in facts.get("tasks") or []:
        if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], dict)):
            raise ValueError("'tasks' is no list of names with their settings")


def _check(name: str, value: Any, kinds: Any) -> None:
    if not isinstance(value, kinds):
        raise ValueError(f"'{name}' is {type(value).__name__}")


def list_versions(facts: Mapping[str, Any]) -> str:
    """The versions of libraries that an attempt ran with, in a line."""
    return ", ".join(f"{name} {version}" for name, version in (facts.get("library_versions") or {}).items())

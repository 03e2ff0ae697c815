"""The facts of a run and its counts, for lm-eval's results file, its journal and the metadata of its traces."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any, get_type_hints

from lm_eval_takeover import __version__
from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.runs.journal import Sample
from lm_eval_takeover.storage.schema import check

if TYPE_CHECKING:  # these load torch and transformers, which readers of a run do not need
    from lm_eval_takeover.pair.gate_choice import GateOrigin
    from lm_eval_takeover.pair.pair import Pair

LIBRARIES = ("torch", "transformers", "lm_eval")
COUNTS = ("tokens", "takeovers", "changed", "asked", "base_passes", "guide_passes")


def describe_run(arguments: ModelArguments, pair: "Pair", policy: Policy, origin: "GateOrigin") -> dict[str, Any]:
    """`config.takeover` of lm-eval's results file, without the counts of what was written."""
    gate, scorer = policy.gate, policy.scorer
    return {
        "label": arguments.model
        or make_label([member.id.id for member in pair.members], policy.name, getattr(scorer, "name", None)),
        "base": asdict(pair.base.id) if pair.base else None,
        "guide": asdict(pair.guide.id) if pair.guide else None,
        "backend": arguments.backend,
        "policy": policy.name,
        "direction": policy.direction,
        "score": scorer.name if scorer else None,
        **{name: getattr(gate, name, None) for name in ("tau", "kappa", "window")},
        "spike_ratio": origin.spike_ratio,
        "target_rate": origin.target.target_rate if origin.target else None,
        "calibration": origin.calibration,
        "kappa_rule": origin.kappa_rule,
        **{"rate": None, "early_tokens": None, **policy.settings()},
        "method": policy.settings(),
        "plugins": {source.name: source.digest for source in policy.sources},
        "seed": arguments.seed,
        "block_size": arguments.block_size,
        "devices": {role: str(pair.member(role).device) for role in policy.roles},
        "dtypes": {role: pair.member(role).loaded_as.dtype for role in policy.roles},
        "parameters": {role: pair.member(role).loaded_as.parameters for role in policy.roles},
    }


def make_label(ids: Sequence[str], policy: str, score: str | None) -> str:
    """`BASE+GUIDE-policy`, by the last part of the models' ids; with the score, where it is not the policy's usual one."""
    other = f"-{score}" if score not in (None, "ce", policy) else ""
    return f"{'+'.join(name.rpartition('/')[2] for name in ids)}-{policy}{other}"


def find_missed_rate(takeover: Mapping[str, Any], realized: float | None) -> float | None:
    """The rate that a run was asked for, if the realized one is off by more than a point and more than a fifth of it."""
    rate = next((takeover[name] for name in ("target_rate", "rate") if takeover.get(name) is not None), None)
    missed = rate is not None and realized is not None and abs(realized - rate) > max(0.01, rate / 5)
    return rate if missed else None


def collect_facts(given: ModelArguments, settings: Mapping[str, Any], takeover: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an attempt, its tasks apart; `settings` are those of `identity`, `takeover` of `describe_run`."""
    return {
        "version": __version__,
        "library_versions": {name: metadata.version(name) for name in LIBRARIES},
        "arguments": asdict(given),
        "settings": settings,
        "takeover": takeover,
    }


def check_facts(facts: Any) -> dict[str, Any]:
    """The facts of an attempt, as a journal holds them. What they call as a model argument has its type. Raises ValueError."""
    hints: dict[str, Any] = get_type_hints(ModelArguments)
    read = {"arguments": hints, "takeover": hints | {"label": str, "method": dict[str, Any]}, "settings": {"seed": int}}
    read["takeover"] |= dict.fromkeys(("base", "guide", "plugins"), dict[str, Any])
    checked: dict[str, Any] = check(facts, dict[str, Any], "facts")
    check(checked.get("library_versions"), dict[str, Any] | None, "facts.library_versions")
    check(checked.get("tasks"), list[tuple[str, dict[str, Any]]] | None, "facts.tasks")
    for part, of_part in read.items():
        values = check(checked.get(part), dict[str, Any] | None, f"facts.{part}") or {}
        for name in values.keys() & of_part.keys():
            check(values[name], of_part[name] | None, f"facts.{part}.{name}")
    return checked


def list_versions(facts: Mapping[str, Any]) -> str:
    """The versions of libraries that an attempt ran with, in a line."""
    return ", ".join(f"{name} {version}" for name, version in (facts.get("library_versions") or {}).items())


# Counts of tokens, passes and samples


def summarize_samples(by_task: Mapping[str, Sequence[Sample]], rate_of_nothing: float = 0.0) -> dict[str, Any]:
    """The counts of the whole run, and of each task under `per_task`; of truncated samples the share, and their scores.

    A sum is None if one sample's count is not known.
    """

    def report(samples: Sequence[Sample]) -> dict[str, Any]:
        cut = [sample for sample in samples if sample.truncated]
        sums, of_cut = _add_up(samples), _add_up(cut)
        counts = {name: sums[name] for name in COUNTS}
        counts |= {"samples": len(samples), "truncated": len(cut) / len(samples) if samples else 0.0}
        described = {"tokens": of_cut["tokens"], **_describe_rates(of_cut, 0.0)} if cut else None
        return {**counts, **_describe_rates(sums, rate_of_nothing), "of_truncated": described}

    whole = [sample for samples in by_task.values() for sample in samples]
    return {**report(whole), "per_task": {task: report(by_task[task]) for task in sorted(by_task)}}


def _add_up(samples: Sequence[Sample]) -> dict[str, Any]:
    columns = {name: [getattr(sample, name) for sample in samples] for name in (*COUNTS, "score_sum", "spikes")}
    return {name: None if None in values else sum(values) for name, values in columns.items()}


def _describe_rates(sums: Mapping[str, Any], rate_of_nothing: float) -> dict[str, float | None]:
    """`gamma`, the share of tokens that the donor wrote; and what explains it: the mean score in nats, the share of spikes."""
    tokens, scores, spikes = (sums[name] for name in ("tokens", "score_sum", "spikes"))
    return {
        "realized_rate": sums["takeovers"] / tokens if tokens else rate_of_nothing,
        "mean_score": round(scores / tokens, 5) if tokens and scores is not None else None,
        "spike_share": round(spikes / tokens, 5) if tokens and spikes is not None else None,
    }

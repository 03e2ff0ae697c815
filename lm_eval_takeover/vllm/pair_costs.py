"""What the two models of an engine cost on this machine, from their shapes and the table of costs: no weight is loaded."""

from dataclasses import replace
from typing import Any

import torch

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding.costs import PassCost, StepCosts, find_machine
from lm_eval_takeover.method.policy import DIRECTIONS, Policy
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.vllm.block_rule import LAUNCH

_COLUMNS = 4096  # cached tokens of a request, at most: a quarter of the context where that is shorter


def describe_costs(arguments: ModelArguments, pair: Pair, policy: Policy) -> StepCosts:
    """Of a pair that may draft."""
    given = arguments.engine_arguments
    drafting, verifying = (pair.member(role) for role in DIRECTIONS[policy.direction])
    graphs, eager = LAUNCH.get(pair.member("guide").device.type, LAUNCH["cpu"])
    if given.get("enforce_eager"):
        graphs = eager
    ranks = int(given.get("tensor_parallel_size", 1))

    def list_costs(member: Member, *launches: float) -> list[PassCost]:
        """A pass of this model, by how long a layer takes to launch."""
        model = _make_empty(member, arguments.dtype)
        machine = find_machine(member.device, model.dtype)
        speeds = {name: ranks * getattr(machine, name) for name in ("weights", "cache", "arithmetic")}
        layers = member.config.get_text_config().num_hidden_layers
        return [
            PassCost.of_model(model, replace(machine, launch=launch, **speeds), layers=layers, padded=False)
            for launch in launches
        ]

    length = int(arguments.max_length or given.get("max_model_len") or pair.max_length or 4 * _COLUMNS)
    alone = policy.host is None
    drafter, fused = list_costs(drafting, eager, graphs)
    (target,) = list_costs(verifying, graphs)
    return StepCosts(
        drafter=drafter,
        target=target,
        fused=None if alone else fused,
        ends=_guess_ends(arguments, policy),
        columns=min(length // 4, _COLUMNS),
        bonus=alone,
    )


def _guess_ends(arguments: ModelArguments, policy: Policy) -> float:
    """How often a position ends a draft, before any was written: the nominal rate; a lone guide's is a guess."""
    if policy.host is None:
        return 0.2
    rates = (arguments.target_rate, arguments.rate, arguments.spike_ratio)
    return max(next((rate for rate in rates if rate is not None), 0.05), 0.01)


def count_parameters(member: Member) -> int:
    """Of the model that the configuration describes; no weight is made."""
    return int(_make_empty(member).num_parameters())


def _make_empty(member: Member, dtype: str = "auto") -> Any:
    from transformers import AutoModelForCausalLM

    asked = {} if dtype == "auto" else {"dtype": getattr(torch, dtype.removeprefix("torch."))}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            member.config, trust_remote_code=member.given.trust_remote_code, **asked
        )

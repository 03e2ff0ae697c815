"""The rows of a comparison that can be run: models alone, and methods at realized rates."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lm_eval_takeover.arguments import DEFAULT_POLICY
from lm_eval_takeover.calibration.tuning import SPIKE_RATIO, Method
from lm_eval_takeover.commands.compare.comparison import ALONE, DRAFTED, GUIDED, Comparison
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.named import Named, find_policy
from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.pair.loading import keep_read, open_method, parse_arguments
from lm_eval_takeover.results.kept_rows import THINKING, ComparedRow
from lm_eval_takeover.storage.paths import make_component

LEADERS = (GUIDED, "ce")  # whose realized rates the rows that follow take
_BY_HAND = ("tau", "spike_ratio", "early_tokens")  # they replace a rate, as each method's budget parameter does


@dataclass(frozen=True, eq=False)
class PlannedRow(ComparedRow):
    """A row that can be run; a model alone has no `method`."""

    arguments: dict[str, Any] = field(default_factory=dict)  # model arguments of this row alone
    method: Method | None = None

    def reads_spike_ratio(self, asked: Comparison) -> bool:
        """Whether its gate is read off a calibration at a spike ratio that was given."""
        return self.method is not None and SPIKE_RATIO in keep_read(asked.model_args, self.arguments["policy"]) | self.arguments


def plan_rows(asked: Comparison) -> list[PlannedRow]:
    """`--rows` at their rates, in their order. Raises ArgumentError for a row that cannot be run."""
    has_leader = any(word.name in LEADERS for word in asked.rows)
    rows = [row for word in asked.rows for row in _expand(word, asked, has_leader)]
    labels = [row.label for row in rows]
    if repeated := next((label for label in labels if labels.count(label) > 1), None):
        raise ArgumentError(f"--rows names {repeated} twice")
    return rows


def _expand(named: Named, asked: Comparison, has_leader: bool) -> Iterator[PlannedRow]:
    """One row for each rate. Raises ArgumentError."""
    if named.name == THINKING:
        yield PlannedRow(THINKING, THINKING, word=THINKING, arguments={"policy": "guide", **named.arguments})
        return
    label = make_component("-".join([named.name, *(f"{name}-{value}" for name, value in named.arguments.items())]))
    if named.name in ALONE:
        if named.rates or named.arguments.keys() - ({"block_size"} if named.name == DRAFTED else set()):
            raise ArgumentError(f"--rows {named.name}: the {named.name} alone has neither rates nor arguments")
        yield PlannedRow(label, named.name, word=label, arguments=ALONE[named.name] | dict(named.arguments))
        return
    own = _name_method(named, asked) | dict(named.arguments)
    shared = keep_read(asked.model_args, own["policy"]) | {"direction": asked.direction}
    by_hand = any(name in {**shared, **own} for name in _BY_HAND) or "target_rate" not in policies.get(own["policy"]).reads()
    method = open_method(parse_arguments({**shared, **own, "target_rate": None if by_hand else 0.5}))
    parameter = method.policy.budget_parameter
    by_hand = by_hand or parameter is None or parameter.name in own
    if by_hand and named.rates:
        reason = "its arguments set already how many tokens are taken over"
        if parameter is None:
            reason = f"policy={method.policy.name} has no budget_parameter that a rate could be solved by"
        raise ArgumentError(f"--rows {named.name}@{named.rates[0]:g}: {reason}; leave the rate out")
    rates = () if by_hand else named.rates or (asked.rates if named.name != GUIDED else ())
    follows = not (by_hand or rates) and named.name in ("random", "early") and has_leader
    method_name = own.get("score", "ce") if own["policy"] == DEFAULT_POLICY else own["policy"]
    given = {key: shared[key] for key in ("score_top_p",) if key in shared} | dict(named.arguments)
    word = ":".join([method_name, *(f"{key}={value}" for key, value in given.items())])
    roles = method.policy.host, method.policy.donor, method.policy.mixes
    for rate in rates or [None if by_hand or follows else asked.target_rate]:
        at = f"{label}@{rate:g}" if rates else label
        yield PlannedRow(at, named.name, rate, follows, word, None, *roles, arguments=own, method=method)


def join_arguments(values: Mapping[str, str]) -> str:
    """As lm_eval reads it: `name=value,…`, or JSON where a value holds a comma."""
    if any("," in value for value in values.values()):
        return json.dumps(values)
    return ",".join(f"{name}={value}" for name, value in values.items())


def _name_method(named: Named, asked: Comparison) -> dict[str, str]:
    """`policy` and `score`; the guided row takes those of `--model_args`."""
    if named.name != GUIDED:
        return find_policy("rows", named.name)
    score = asked.model_args.get("score")
    policy = asked.policy or ("entropy" if score == "entropy" else DEFAULT_POLICY)
    return {"policy": policy, **({"score": score} if score else {})}

"""The rows of a comparison: models alone, and methods at realized rates."""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lm_eval_takeover.arguments import DEFAULT_POLICY
from lm_eval_takeover.calibration.tuning import SPIKE_RATIO, Method
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.method.named import Named, find_policy, parse_word
from lm_eval_takeover.method.policies import Gated
from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.pair.loading import open_method, parse_arguments

_ORDER = ("base", "guided", "random", "early", "thinking", "guide")  # in which they run; methods stand with guided
_ALONE = ("base", "guide")
_OF_GATES = ("score", "tau", "kappa", "spike_ratio", "kappa_rule")
_BY_HAND = (
    "tau",
    "spike_ratio",
    "early_tokens",
)  # arguments that stand for a rate, beside each method's budget parameter


@dataclass(frozen=True, eq=False)
class Row:
    """One row. `label` names its folder; `word` is the method as `calibrate --methods` takes it.

    `rate` is the realized rate that the method's budget parameter is solved for. It is None for a model alone, for a parameter
    set by hand, and for a row that `follows`: it gets the rate of each task that the guided row realizes. `covers` is a
    larger rate, of which the method comes no nearer than this row does.
    """

    label: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)  # model arguments of this row alone
    rate: float | None = None
    follows: bool = False
    method: Method | None = None  # None for a model alone
    word: str = ""
    covers: float | None = None

    @property
    def family(self) -> str:
        """What a curve is drawn of: rows that differ in their rate alone."""
        return self.word or self.name


def plan_rows(options: argparse.Namespace) -> list[Row]:
    """`--rows` at their rates, in the order in which they run. Raises ArgumentError for each that could not be run."""
    words = [word for word in options.rows.split(",") if word]
    if not words:
        raise ArgumentError("--rows is empty; expected some of base,guide,thinking=MODEL, scores and policies")
    named = [_parse_row(word) for word in words]
    names = [one.name for one in named]
    if repeated := next((word for place, word in enumerate(words) if word in words[:place]), None):
        raise ArgumentError(f"--rows names {repeated} twice")
    leader = next((name for name in ("guided", "ce") if name in names), None)
    found = [row for one in named for row in _expand(one, options, leader)]
    labels = [row.label for row in found]
    if repeated := next((label for label in labels if labels.count(label) > 1), None):
        raise ArgumentError(f"--rows: {repeated} stands twice; name each rate of a method once")
    place = {name: number for number, name in enumerate(_ORDER)}
    return sorted(found, key=lambda row: (place.get(row.name, 1), row.follows))


def _parse_row(word: str) -> Named:
    name, sign, model = word.partition("=")
    if name == "thinking" and model:
        return Named(name, {"model": model}, ())
    row = parse_word("rows", word)
    if name == "thinking" or (sign and not row.arguments):
        raise ArgumentError(f"--rows '{word}': thinking=MODEL names a model, and no other row does")
    if row.name not in _ORDER and row.name not in policies and row.name not in scores:
        known = [*_ORDER, *policies.names(), *scores.names()]
        raise ArgumentError(f"--rows '{row.name}' is not known; {nearest(row.name, known)}")
    return row


def _expand(named: Named, options: argparse.Namespace, leader: str | None) -> Iterator[Row]:
    """One row for each rate. Raises ArgumentError."""
    if named.name == "thinking":
        yield Row("thinking", "thinking")
        return
    base = _label(named)
    if named.name in _ALONE:
        if named.rates or named.arguments:
            raise ArgumentError(f"--rows {named.name}: the {named.name} alone has neither rates nor arguments")
        yield Row(base, named.name, {"policy": named.name})
        return
    own = _name_method(named, options) | dict(named.arguments)
    shared = read_shared(options, own["policy"]) | {"direction": options.direction}
    method = open_method(parse_arguments({**shared, **own, "target_rate": None if _is_by_hand(own, shared) else 0.5}))
    budget_parameter = method.policy.budget_parameter
    by_hand = budget_parameter is None or _is_by_hand(own, shared, budget_parameter.name)
    if by_hand and named.rates:
        raise ArgumentError(
            f"--rows {named.name}@{named.rates[0]:g}: its arguments say already how much the donor writes"
        )
    rates = () if by_hand else named.rates or (options.rates if named.name != "guided" else ())
    follows = not (by_hand or rates) and named.name in ("random", "early") and leader is not None
    for rate in rates or [None if by_hand or follows else options.target_rate]:
        label = f"{base}@{rate:g}" if rates else base
        yield Row(label, named.name, own, rate, follows, method, _write_word(named, own))


def read_shared(options: argparse.Namespace, policy: str) -> dict[str, str]:
    """`--model_args`, without those of a gate where the policy has none."""
    gated = issubclass(policies.get(policy), Gated)
    return {name: value for name, value in options.model_args.items() if gated or name not in _OF_GATES}


def _name_method(named: Named, options: argparse.Namespace) -> dict[str, str]:
    """`policy` and `score`; those of `--model_args` for the guided row."""
    if named.name != "guided":
        return find_policy("rows", named.name)
    score = options.model_args.get("score")
    policy = options.guided_policy or ("entropy" if score == "entropy" else DEFAULT_POLICY)
    return {"policy": policy, **({"score": score} if score else {})}


def _is_by_hand(own: dict[str, Any], shared: dict[str, Any], budget_parameter: str | None = None) -> bool:
    """Whether the row's own arguments, or of a gate those for all rows, say how much the donor writes."""
    given = {**own, **shared} if budget_parameter in (None, SPIKE_RATIO) else own
    return any(name in given for name in (*_BY_HAND, budget_parameter))


def _label(named: Named) -> str:
    pairs = [f"{name}-{value}" for name, value in named.arguments.items()]
    return re.sub(r"[^\w.+-]", "-", "-".join([named.name, *pairs]))


def _write_word(named: Named, own: dict[str, Any]) -> str:
    name = own.get("score", own["policy"]) if own["policy"] == DEFAULT_POLICY else own["policy"]
    name = "ce" if name == DEFAULT_POLICY else name
    return ":".join([name, *(f"{key}={value}" for key, value in named.arguments.items())])

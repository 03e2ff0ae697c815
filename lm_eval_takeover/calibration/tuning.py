"""A method whose budget parameter is open: what a calibration solves for, and the policy at a given value."""

from dataclasses import dataclass, replace
from typing import Any

from lm_eval_takeover.calibration.files import KAPPA_RULES, Calibration
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Gated
from lm_eval_takeover.method.policy import WINDOW, BudgetParameter, Policy

SPIKE_RATIO = "spike_ratio"  # the budget parameter of gates: tau and kappa follow from it


@dataclass(frozen=True, slots=True)
class Method:
    """A policy, whose budget parameter may have any value, and how the window test of its gate is set."""

    policy: Policy
    kappa_rule: str = KAPPA_RULES[0]
    window: int = WINDOW

    @property
    def budget_parameter(self) -> BudgetParameter:
        if self.policy.budget_parameter is None:
            own = "its realized rate is its rate=…" if hasattr(self.policy, "rate") else "it has no budget_parameter"
            raise ArgumentError(f"policy={self.policy.name} has nothing that a rate could be solved by: {own}")
        return self.policy.budget_parameter

    @property
    def settings(self) -> dict[str, Any]:
        """The model arguments that identify the method, without the budget parameter."""
        policy = self.policy
        settings: dict[str, Any] = {"policy": policy.name}
        if isinstance(policy, Gated):
            settings |= {"score": policy.score, "kappa_rule": self.kappa_rule, "window": self.window}
            settings |= {} if policy.score_top_p == 1 else {"score_top_p": policy.score_top_p}
        solved = self.budget_parameter.name
        own = {name: value for name, value in policy.settings().items() if name != solved and value is not None}
        return settings | own

    def at(self, value: float, calibration: Calibration) -> Policy:
        """The policy with its budget parameter at this value; with `score_top_p` tau and kappa are those of the whole score."""
        if self.budget_parameter.name != SPIKE_RATIO:
            fields: dict[str, Any] = {self.budget_parameter.name: value}
            if isinstance(self.policy, Gated):  # a binary score: the gate fires where it is 1
                fields["gate"] = Gate(0.0, 0.0, self.window)
            return replace(self.policy, **fields)
        assert isinstance(self.policy, Gated)
        threshold = calibration.score(self.policy.score).threshold(value)
        return replace(self.policy, gate=Gate(threshold["tau"], threshold[f"kappa_{self.kappa_rule}"], self.window))

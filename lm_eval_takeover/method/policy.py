"""What a policy is: who may write token t.

A policy is a frozen dataclass, its fields model arguments. It names the models that it asks (`models`) and its score (`scorer`).
`takes_over` says which positions the donor writes, `mix` what is drawn there. Score and mix say if they need the donor.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from lm_eval_takeover.errors import ArgumentError, PluginError, nearest
from lm_eval_takeover.method.registry import PACKAGE, Registry, Score, Source, call_plugin, check_shape

if TYPE_CHECKING:
    from torch import Tensor

    from lm_eval_takeover.method.gate import Gate
    from lm_eval_takeover.method.request import Generation

    Asked = Tensor | None  # None of a model that is not asked

DIRECTIONS = {"forward": ("base", "guide"), "reverse": ("guide", "base")}  # host and donor
OF_GATES = ("spike_ratio", "tau", "kappa", "kappa_rule", "window")  # model arguments that a gate is set by
OF_CALIBRATIONS = ("target_rate", "calibration")  # that a budget parameter is solved by
_REDRAW = 0x5851F42D4C957F2D  # changes both halves of a word, so that each token gets another number
WINDOW = 10  # scores that a policy without a gate is shown


@dataclass(frozen=True, slots=True)
class BudgetParameter:
    """The model argument that sets how much the donor writes, and its bounds; `rising`: the larger, the more."""

    name: str
    low: float = 0.0
    high: float = 1.0
    rising: bool = True


@dataclass(frozen=True, slots=True)
class Block:
    """Positions `t .. t + k - 1` of some rows, as a policy sees them before any of them is written.

    A policy decides as if every drafted token stood. What follows the first one that does not stand is decided again. `k` is 1
    where one token is written at a time.
    """

    positions: "Tensor"  # `[rows, k]` tokens emitted before: `t`
    scores: "Tensor"  # `[rows, k]` `s_t`; NaN for policies without a score
    window: "Tensor"  # `[rows, window]` the scores just before the block, oldest first, zeros where there are none yet
    chance: "Tensor | None" = None  # `[rows, k]` uniform numbers in [0, 1), where `uses_chance`
    donor_length: "Tensor | None" = None  # `[rows]` tokens of the donor's own answer, where `needs_donor_length`
    tokens: "Tensor | None" = None  # `[rows, k]` the host's draws, kept without a takeover, where `needs_token`
    written: "Sequence[Generation] | None" = None  # by row all tokens before and their writers, where `reads_text`
    tokenizer: Any = None  # of the pair, where `reads_text`


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """Who may write token t. `direction=reverse` swaps host and donor."""

    name: ClassVar[str] = "unregistered"
    source: ClassVar[Source] = Source(PACKAGE)
    models: ClassVar[tuple[str, ...]] = ("base", "guide")  # which it asks
    reads_text: ClassVar[bool] = False  # whether it looks at what was written before

    direction: str = "forward"

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise ArgumentError(f"direction='{self.direction}' is not known; {nearest(self.direction, DIRECTIONS)}")

    @classmethod
    def reads(cls) -> frozenset[str]:
        """The model arguments of the method that it reads: its fields, and those that its gate and its budget are set by."""
        names = {field.name for field in fields(cls)} - {"gate"}
        if len(cls.models) == 1:
            names.discard("direction")
        if any(field.name == "gate" for field in fields(cls)):
            names.update(OF_GATES)
        if cls.budget_parameter is not Policy.budget_parameter:
            names.update(OF_CALIBRATIONS)
        return frozenset(names)

    @abstractmethod
    def takes_over(self, block: Block) -> "Tensor":
        """Whether the donor writes each position: bool `[rows, k]`."""

    # What a policy may say beside that

    @property
    def scorer(self) -> Score | None:
        """The score whose values `takes_over` is shown; None without one."""
        return None

    @property
    def gate(self) -> "Gate | None":
        """The calibrated test, of policies that have one."""
        return None

    @property
    def thinking_budget(self) -> int | None:
        """How many tokens of thinking it allows; None for any number."""
        return None

    @property
    def budget_parameter(self) -> BudgetParameter | None:
        """The argument that sets how much the donor writes, of policies that can be calibrated to a rate."""
        return None

    @property
    def uses_chance(self) -> bool:
        """Whether it decides by random numbers."""
        return False

    @property
    def needs_token(self) -> bool:
        """Whether it must know the host's draws."""
        return self.mixes or (self.scorer is not None and self.scorer.needs_token)

    @property
    def needs_donor_length(self) -> bool:
        """Whether it must know how long the donor's own answer is, which is then written first."""
        return False

    @property
    def redraws(self) -> bool:
        """Whether it decides a position by the host's draw there. Takeovers are then drawn with other random words."""
        is_own = type(self).needs_token is not Policy.needs_token
        return is_own or (self.scorer is not None and self.scorer.needs_token)

    def mix(self, host_logits: "Tensor", donor_logits: "Tensor") -> "Tensor":
        """The raw logits `[..., vocab]` that takeovers are drawn from. With another mix, only changed tokens are the donor's."""
        return donor_logits

    def choose_words(self, words: "Tensor", taken: "Tensor") -> "Tensor":
        """The random words of draws, given which are takeovers, both `[...]`. The host's own pair their draws."""
        # With the host's words the donor would favour the token that was just refused.
        return words.where(~taken, words ^ _REDRAW) if self.redraws else words

    # What follows

    @property
    def host(self) -> str | None:
        """The role that writes by default; None if the donor writes everything."""
        return DIRECTIONS[self.direction][0]

    @property
    def donor(self) -> str | None:
        """The role that takes over; None if there are no takeovers."""
        return DIRECTIONS[self.direction][1]

    @property
    def roles(self) -> tuple[str, ...]:
        """The models that this policy asks, the host first."""
        return tuple(role for role in (self.host, self.donor) if role is not None)

    @property
    def mixes(self) -> bool:
        """Whether takeovers are drawn from both distributions."""
        return type(self).mix is not Policy.mix

    @property
    def drafts(self) -> bool:
        """Whether takeovers follow from the donor's distribution, so that the host drafts and the donor verifies."""
        return self.mixes or (self.scorer is not None and self.scorer.needs_donor)

    @property
    def window(self) -> int:
        """How many scores it is shown."""
        return self.gate.window if self.gate is not None else WINDOW

    def observe(self, tokens: "Tensor", host_logits: "Asked", donor_logits: "Asked", host_tokens: "Asked") -> "Tensor":
        """The trace `[..., OBSERVED]` of these tokens; see `reading.observe`."""
        from lm_eval_takeover.method.reading import observe

        base = host_logits if self.host == "base" else donor_logits if self.donor == "base" else None
        return observe(tokens, host_logits, donor_logits, base_logits=base, host_tokens=host_tokens)

    def writes(self, taken_over: bool) -> str:
        """The role that writes a token, given whether it is a takeover."""
        role = (self.donor or self.host) if taken_over else (self.host or self.donor)
        assert role is not None
        return role

    def settings(self) -> dict[str, Any]:
        """Its own model arguments: the fields that are neither the direction nor a part of the gate."""
        shared = ("direction", "score", "score_top_p", "gate")
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in shared}

    @property
    def sources(self) -> list[Source]:
        """The plug-ins that it comes from: its own, and its score's."""
        sources = {self.source, self.scorer.source} if self.scorer is not None else {self.source}
        return sorted((source for source in sources if source.digest is not None), key=lambda source: source.name)

    def scores(self, host_logits: "Asked", donor_logits: "Asked", tokens: "Asked" = None) -> "Tensor":
        """`s_t` for logits `[..., vocab]` and the host's draws `[...]`: `[...]`, NaN where this policy asks for no score."""
        logits = host_logits if host_logits is not None else donor_logits
        assert logits is not None
        if self.scorer is None or host_logits is None:
            return logits.new_full(logits.shape[:-1], math.nan)
        return self.scorer(host_logits, donor_logits, tokens)

    def refuse_nan(self, scores: "Tensor") -> None:
        """Raise PluginError where a score of sound logits is no number."""
        if self.scorer is not None and bool(scores.isnan().any()):
            raise PluginError(f"{self.scorer.where} returned NaN for logits that are a distribution")

    def decide(self, block: Block) -> "Tensor":
        """`takes_over`, checked where it is a plug-in's: bool `[rows, k]`. Raises PluginError."""
        if self.source.digest is None:
            return self.takes_over(block)
        where = f"policy '{self.name}' ({self.source.name}: {type(self).__name__}.takes_over)"
        taken: Tensor = call_plugin(where, self.takes_over, block)
        check_shape(where, taken, block.positions.shape)
        if str(taken.dtype) != "torch.bool":
            raise PluginError(f"{where} returned {taken.dtype}, not torch.bool")
        return taken


policies: Registry[type[Policy]] = Registry("policy", f"{PACKAGE}.policies")

PolicyClass = TypeVar("PolicyClass", bound=type[Policy])


def register_policy(name: str) -> Callable[[PolicyClass], PolicyClass]:
    """Register a policy, a frozen dataclass whose fields are model arguments."""

    def register(kind: PolicyClass) -> PolicyClass:
        kind.name, kind.source = name, Source.of(kind)
        policies.add(name, kind)
        return kind

    return register

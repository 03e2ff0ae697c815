"""What vLLM's workers are told: plain values, since they travel between processes.

`EngineSettings` is what an engine was started for; it rides on the model's configuration as `takeover`. `RequestSettings` is one
sample; it rides on `SamplingParams.extra_args`, every name behind `takeover_`, so that a server's clients can give them, too.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Self, get_type_hints

from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.registry import load_plugins, policies
from lm_eval_takeover.method.request import Sampling

PREFIX = "takeover_"
GATE = ("tau", "kappa", "window")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """What one engine computes. `vocab` ids are written, `ends` end a text; `base` is None where it is no part of the model.

    `block` is the length of a draft, 1 where none is drafted.
    """

    policy: dict[str, Any]
    vocab: int
    ends: list[int]
    block: int = 1
    seed: int = 0
    plugins: str | None = None
    base: str | None = None
    base_revision: str | None = None
    base_architectures: list[str] | None = None
    guide_architectures: list[str] | None = None
    trust_remote_code: bool = False

    @classmethod
    def of(cls, hf_config: Any) -> Self:
        """Those that `hf_overrides` put on a model's configuration."""
        return cls(**hf_config.takeover)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    def load_policy(self) -> Policy:
        """The policy, in a process that has loaded no plug-in yet."""
        load_plugins(self.plugins)
        return build_policy(self.policy)


def describe_policy(policy: Policy) -> dict[str, Any]:
    """A policy as plain values, its gate among them. Raises ArgumentError for one that vLLM cannot have."""
    if policy.reads_text:
        raise ArgumentError(
            f"policy={policy.name} looks at the text so far, which backend=vllm does not show a policy; use backend=hf"
        )
    return {"name": policy.name, **asdict(policy)}


def build_policy(values: Mapping[str, Any]) -> Policy:
    """The reverse of `describe_policy`."""
    rest = dict(values)
    kind = policies.get(rest.pop("name"))
    if rest.get("gate") is not None:
        rest["gate"] = Gate(**rest["gate"])
    policy = kind(**rest)
    describe_policy(policy)
    return policy


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSettings:
    """One sample: how its tokens are drawn and, where they differ from the engine's, its gate and policy.

    `forced` are tokens to emit whatever is drawn, for log-likelihoods. `donor_length` is read by `early` with a rate. `lockstep`
    lets a blockwise engine emit one token a pass. `scored` records every registered score, of a fused engine's direction;
    `compared`, beside `forced`, those with the base as host, and what both models think of the forced tokens.
    """

    id: str = ""
    sample: int = 0
    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    policy: str = ""  # in JSON, as `describe_policy` has it; empty for the engine's
    tau: float | None = None
    kappa: float | None = None
    window: int | None = None
    rate: float | None = None
    early_tokens: int | None = None
    donor_length: int = 0
    traced: bool = False
    scored: bool = False
    compared: bool = False
    lockstep: bool = False
    forced: tuple[int, ...] = ()

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k)

    def to_extra_args(self) -> dict[str, Any]:
        """What differs from the defaults, as `SamplingParams.extra_args` and a server's `vllm_xargs` take it."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            PREFIX + name: list(value) if isinstance(value, tuple) else value
            for name, value in given.items()
            if value != getattr(_DEFAULT, name)
        }

    @classmethod
    def read(cls, params: Any, seed: int = 0) -> Self:
        """Of vLLM's `SamplingParams`, `seed` being the engine's. Where no sampling rides on it, its own counts.

        Raises ArgumentError for an unknown name or a value of another type.
        """
        settings = cls.from_extra_args(params.extra_args or {})
        own: dict[str, Any] = {}
        if f"{PREFIX}seed" not in (params.extra_args or {}):
            own["seed"] = seed if params.seed is None else params.seed
        if f"{PREFIX}temperature" not in (params.extra_args or {}) and not settings.id:
            own |= {"temperature": params.temperature, "top_p": params.top_p, "top_k": max(params.top_k, 0)}
        return replace(settings, **own)

    @classmethod
    def from_extra_args(cls, extra_args: Mapping[str, Any]) -> Self:
        """The reverse of `to_extra_args`; names without our prefix are others'. Raises ArgumentError as `read`."""
        hints = _list_types()
        given = {}
        for prefixed, value in extra_args.items():
            if not prefixed.startswith(PREFIX):
                continue
            name = prefixed.removeprefix(PREFIX)
            if name not in hints:
                raise ArgumentError(f"unknown setting '{prefixed}'; {nearest(name, hints)}")
            given[name] = _typed(name, value, hints[name])
        return cls(**given)

    def choose_policy(self, engine: Policy) -> Policy:
        """The engine's policy with this request's settings, or another of its models. Raises ArgumentError."""
        if self.policy:
            other = build_policy(json.loads(self.policy))
            missing = [role for role in other.roles if role not in engine.roles]
            if missing:
                raise ArgumentError(
                    f"policy={other.name} asks the {missing[0]}, which this engine was not started with"
                )
            return other
        changed = {name: value for name in ("rate", "early_tokens") if (value := getattr(self, name)) is not None}
        gate = {name: value for name in GATE if (value := getattr(self, name)) is not None}
        known = {field.name for field in fields(engine)} | (set(GATE) if engine.gate is not None else set())
        for name in (*changed, *gate):
            if name not in known:
                raise ArgumentError(f"{PREFIX}{name}={getattr(self, name)} is not read by policy={engine.name}")
        if gate:
            assert engine.gate is not None
            changed["gate"] = replace(engine.gate, **gate)
        return replace(engine, **changed) if changed else engine


_DEFAULT = RequestSettings()


@cache
def _list_types() -> dict[str, Any]:
    """Of the settings of a request, by name; to look them up takes longer than all else that a request is asked."""
    return get_type_hints(RequestSettings)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """A value as its field has it; clients may send numbers as texts."""
    try:
        if hint == tuple[int, ...]:
            return tuple(int(one) for one in value)
        if hint is bool:
            return str(value).lower() in ("true", "1")
        for kind in (str, int, float):
            if hint in (kind, kind | None):
                return kind(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{PREFIX}{name}={value!r} is not {getattr(hint, '__name__', hint)}") from error
    raise AssertionError(f"{name} has no type that travels")

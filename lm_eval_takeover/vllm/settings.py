"""Settings for vLLM's workers: plain values, since they travel between processes.

`EngineSettings` describe an engine. They travel as `takeover` in vLLM's `hf_overrides`. `RequestSettings` describe a sample. They
travel in `SamplingParams.extra_args` as one sealed text that no client can forge.
"""

import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policy import Policy, policies
from lm_eval_takeover.method.registry import load_plugins
from lm_eval_takeover.method.request import Sampling

PREFIX = "takeover_"
# All settings of a request in JSON, and a signature of this process.
SEALED, SEAL = f"{PREFIX}sealed", f"{PREFIX}seal"
GATE = ("tau", "kappa", "window")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """What one engine computes."""

    policy: str  # as `describe_policy` has it
    vocab: int  # ids that are written
    ends: list[int]  # ids that end a text
    block: int = 1  # length of a draft, 1 without drafts
    seed: int = 0
    plugins: str | None = None
    base: str | None = None  # None if the model class holds no base
    base_revision: str | None = None
    guide_architectures: list[str] | None = None
    guide_rows: int = 0  # the guide's padded vocabulary, if vLLM was told another size
    trust_remote_code: bool = False

    @classmethod
    def of(cls, model_config: Any) -> Self:
        """The settings in `hf_overrides`. Removes them from `hf_config`, where vLLM's compile key would contain them."""
        vars(model_config.hf_config).pop("takeover", None)
        return cls(**model_config.hf_overrides["takeover"])

    def load_policy(self) -> Policy:
        """The policy. Loads plug-ins first."""
        load_plugins(self.plugins)
        return build_policy(self.policy)


def describe_policy(policy: Policy) -> str:
    """A policy in JSON, gate included. Raises ArgumentError for a policy that vLLM cannot run."""
    if policy.reads_text:
        raise ArgumentError(
            f"policy={policy.name} reads the text so far, which backend=vllm does not show a policy; use backend=hf"
        )
    if policy.thinking_budget is not None:
        raise ArgumentError(f"thinking_budget={policy.thinking_budget} is not offered with backend=vllm; use backend=hf")
    return json.dumps({"name": policy.name, **asdict(policy)})


def build_policy(text: str) -> Policy:
    """The reverse of `describe_policy`."""
    values = json.loads(text)
    kind = policies.get(values.pop("name"))
    if values.get("gate") is not None:
        values["gate"] = Gate(**values["gate"])
    policy = kind(**values)
    describe_policy(policy)
    return policy


def change_policy(policy: Policy, changes: Mapping[str, Any]) -> Policy:
    """The policy with other model arguments. Raises ArgumentError for one that it does not read or refuses."""
    names = {field.name for field in fields(policy)} | (set(GATE) if policy.gate is not None else set())
    for name in changes.keys() - names:
        raise ArgumentError(f"{PREFIX}{name}={changes[name]} is not read by policy={policy.name}")
    values = {name: value for name, value in changes.items() if name not in GATE}
    if policy.gate is not None:
        values["gate"] = replace(policy.gate, **{name: changes[name] for name in GATE if name in changes})
    return replace(policy, **values)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSettings:
    """One sample: its sampling, and its policy where it differs from the engine's."""

    id: str = ""
    sample: int = 0
    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    policy: str = ""  # as `describe_policy` has it; empty for the engine's
    donor_length: int = 0  # read by `early` with a rate
    traced: bool = False
    scored: bool = False  # record every registered score, in the engine's direction
    compared: bool = False  # with `forced`: the scores with the base as host, and what both models think of the tokens
    lockstep: bool = False  # one token a pass in an engine with drafts
    forced: tuple[int, ...] = ()  # tokens to emit whatever is drawn, for log-likelihoods
    begun: int = 0  # tokens at the end of vLLM's prompt that belong to the text
    begun_scores: tuple[float, ...] = ()  # as in `Request`

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k, self.min_p)

    def to_extra_args(self) -> dict[str, Any]:
        """Settings that differ from the defaults, sealed, for `SamplingParams.extra_args` and `vllm_xargs`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        text = json.dumps({name: value for name, value in values.items() if value != getattr(_DEFAULT, name)})
        return {SEALED: text, SEAL: _seal(text)}

    @classmethod
    def read(cls, params: Any, name: str = "") -> Self:
        """Read vLLM's `SamplingParams`. `check_params` has checked the seal in the process that made it.

        vLLM itself makes up bare requests, to warm up: greedy ones of the engine's policy, called by vLLM's `name`.
        """
        values: dict[str, Any] = json.loads((params.extra_args or {}).get(SEALED, "{}"))
        values.setdefault("id", name)
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values | lists)

    def choose_policy(self, engine: Policy) -> Policy:
        """The engine's policy, or another one of the same models. Raises ArgumentError for one of other models."""
        if not self.policy:
            return engine
        other = build_policy(self.policy)
        missing = [role for role in other.roles if role not in engine.roles]
        if missing:
            raise ArgumentError(f"policy={other.name} asks the {missing[0]}, which this engine was not started with")
        return other


_DEFAULT = RequestSettings()
_KEY = secrets.token_bytes(32)  # of this process, which seals and checks; workers get checked settings
# What vLLM changes in the guide's logits alone; the gate compares those of both models.
_ONE_SIDED = ("min_tokens", "structured_outputs", "thinking_token_budget", "logit_bias", "allowed_token_ids", "bad_words")


def _seal(text: str) -> str:
    return hmac.digest(_KEY, text.encode(), "sha256").hex()


def check_params(params: Any) -> None:
    """vLLM's `validate_params`: raises ArgumentError for settings that no client may send, before a worker sees them."""
    for name in _ONE_SIDED:
        if getattr(params, name, None):
            raise ArgumentError(f"{name}: guided texts are drawn without it; leave it out")
    extra = params.extra_args or {}
    if not hmac.compare_digest(str(extra.get(SEAL)), _seal(str(extra.get(SEALED)))):
        raise ArgumentError("a request without this package's seal: ask by lm_eval, or by the routes of `serve`")

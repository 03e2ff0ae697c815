"""The model arguments of `lm_eval --model guided-takeover --model_args …`, checked once when they come in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args, get_type_hints

from lm_eval_takeover.errors import ArgumentError, nearest

BACKENDS = ("hf",)
DEFAULT_POLICY = "disagreement"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelArguments:
    """Every model argument with its default; what each means stands in the README's table.

    Raises ArgumentError for an unknown name, with the nearest known one, and for a value of the wrong type or range.
    """

    base: str | None = None
    guide: str | None = None
    backend: str = "hf"
    policy: str = DEFAULT_POLICY
    score: str | None = None
    score_top_p: float = 1.0
    calibration: str | None = None
    allow_calibration_mismatch: bool = False
    spike_ratio: float | None = None
    target_rate: float | None = None
    tau: float | None = None
    kappa: float | None = None
    window: int = 10
    kappa_rule: str | None = None
    direction: str = "forward"
    rate: float | None = None
    early_tokens: int | None = None
    block_size: int | str = "auto"
    seed: int = 0
    dtype: str = "auto"
    device: str | None = None
    guide_device: str | None = None
    guide_dtype: str | None = None
    batch_size: int | str = 1
    max_batch_size: int | None = None
    max_length: int | None = None
    max_gen_toks: int = 256
    enable_thinking: bool | None = None
    trust_remote_code: bool = False
    run_dir: str | None = None
    plugins: str | None = None
    policy_arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, values: dict[str, Any], own: Mapping[str, Any] | None = None) -> Self:
        """From lm-eval's keyword arguments, whose values its command line has turned into numbers where it could.

        `own` are the types of arguments that only the chosen policy has; they go into `policy_arguments`.
        """
        hints = {**get_type_hints(cls), **(own or {})}
        del hints["policy_arguments"]
        unknown = [name for name in values if name not in hints]
        if unknown:
            raise ArgumentError(f"unknown model argument '{unknown[0]}'; {nearest(unknown[0], hints)}")
        typed = {name: _typed(name, value, hints[name]) for name, value in values.items()}
        policy_arguments = {name: typed.pop(name) for name in own or {} if name in typed}
        return cls(**typed, policy_arguments=policy_arguments)

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ArgumentError(
                f"backend='{self.backend}' is not in this version; expected one of {', '.join(BACKENDS)}"
            )
        if self.block_size != "auto" and (isinstance(self.block_size, str) or self.block_size < 1):
            raise ArgumentError(f"block_size={self.block_size} is neither 'auto' nor a whole number of at least 1")
        if self.batch_size != "auto" and (isinstance(self.batch_size, str) or self.batch_size < 1):
            raise ArgumentError(f"batch_size={self.batch_size} is neither 'auto' nor a whole number of at least 1")
        if self.window < 1:
            raise ArgumentError(f"window={self.window} is not at least 1 token; kappa=0 turns the window test off")
        if self.spike_ratio is not None and not 0 < self.spike_ratio < 1:
            raise ArgumentError(
                f"spike_ratio={self.spike_ratio} is outside 0..1, the share of calibration tokens that spike"
            )
        if self.target_rate is not None and not 0 < self.target_rate < 1:
            raise ArgumentError(
                f"target_rate={self.target_rate} is outside 0..1, the share of tokens that the donor writes"
            )
        if self.target_rate is not None and self.spike_ratio is not None:
            raise ArgumentError(
                f"target_rate={self.target_rate} stands for a spike ratio that calibrate has found, so "
                f"spike_ratio={self.spike_ratio} would be ignored; give one or the other"
            )
        for name in ("base", "guide"):
            if getattr(self, name) == "":
                raise ArgumentError(f"{name}= is empty; expected a hub id or a local folder")
        if self.run_dir == "":
            raise ArgumentError("run_dir= is empty; expected a folder, which is made where there is none")
        for name in ("max_length", "max_gen_toks", "max_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"{name}={value} is not at least 1")
        for gate in ("tau", "kappa"):
            for read in ("calibration", "spike_ratio", "target_rate", "kappa_rule"):
                if getattr(self, gate) is not None and getattr(self, read) is not None:
                    raise ArgumentError(
                        f"{gate}={getattr(self, gate)} sets the gate by hand, so {read}={getattr(self, read)} would be "
                        f"ignored; give one or the other"
                    )
        if self.kappa is not None and self.tau is None:
            raise ArgumentError(f"kappa={self.kappa} sets the gate by hand and needs tau=… beside it")

    @property
    def rows(self) -> int:
        """The batch size in samples; for `auto` the most that it may be, 64 or `max_batch_size` where that is smaller."""
        if isinstance(self.batch_size, int):
            return self.batch_size
        return min(64, self.max_batch_size or 64)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type that the argument has."""
    kinds = get_args(hint) or (hint,)
    if value is None or value == "None":
        if type(None) in kinds:
            return None
        raise ArgumentError(f"{name}={value} has no value; leave it out for its default")
    if name == "batch_size" and str(value).partition(":")[0] == "auto":
        return "auto"
    if bool in kinds:
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        raise ArgumentError(f"{name}={value!r} is neither True nor False")
    if isinstance(value, bool):
        raise ArgumentError(f"{name}={value} is a truth value; expected {_named(kinds)}")
    for kind in (int, float):
        if kind in kinds:
            try:
                number = kind(value)
                if kind is float or float(value) == number:
                    return number
            except (TypeError, ValueError, OverflowError):
                pass
    texts = isinstance(value, (str, Path, int, float)) or type(value).__name__ in ("dtype", "device")  # torch's
    if str in kinds and texts:
        return str(value)
    raise ArgumentError(f"{name}={value!r} is not {_named(kinds)}")


def _named(kinds: tuple[Any, ...]) -> str:
    words = {int: "a whole number", float: "a number", str: "a text"}
    return " or ".join(words[kind] for kind in kinds if kind in words)

"""The models of a stored run, for commands that read its texts again: their options, and the pair with its engine."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.backends import Backend, open_backend
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Disagreement
from lm_eval_takeover.pair.loading import load_pair
from lm_eval_takeover.runs.run_folder import RunFolder
from lm_eval_takeover.runs.sample_keys import MODEL_ARGUMENTS

_MODELS = {name for name, part in MODEL_ARGUMENTS.items() if part in ("models", "trust_remote_code")}
_PLACES = {
    *(
        "device",
        "guide_device",
        "device_map",
        "guide_device_map",
        "parallelize",
        "max_memory_per_gpu",
        "max_cpu_memory",
    ),
    *("offload_folder", "attn_implementation", "guide_attn_implementation"),
}  # the model arguments of the transformers engines that say where weights go


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line says of the models; None leaves the run's own."""

    base: str | None = None
    guide: str | None = None
    device: str | None = None
    guide_device: str | None = None
    dtype: str | None = None
    guide_dtype: str | None = None
    trust_remote_code: bool | None = None
    batch_size: str = "auto"
    plugins: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)  # model arguments of what computes

    def apply(self, run: RunFolder) -> ModelArguments:
        """The run's arguments with these. Raises ArgumentError where neither names a model."""
        known = _MODELS if self.engine else _MODELS | _PLACES
        own = {name: value for name, value in asdict(self).items() if value is not None and name != "engine"}
        if self.base is not None:
            own |= {"revision": None, "subfolder": None}
        if self.guide is not None:
            own |= {"guide_revision": None, "guide_subfolder": None}
        if self.device is None:  # where the run was made there may have been another machine
            own |= {"device": None, "guide_device": self.guide_device}
        stored = {name: value for name, value in run.arguments.items() if name in known}
        arguments = ModelArguments.parse({**stored, **own, **self.engine})
        if (arguments.base is None) != (arguments.guide is None):
            missing = "base" if arguments.base is None else "guide"
            raise ArgumentError(
                f"--{missing} is missing: the run in '{run.folder}' (policy={run.policy}) names none; give "
                f"--{missing} <hub id or local folder>"
            )
        return arguments


class Readers:
    """A pair, and the engine that reads texts with it, which starts at the first text."""

    def __init__(self, arguments: ModelArguments) -> None:
        self.arguments, self.pair = arguments, load_pair(arguments)

    @cached_property
    def backend(self) -> Backend:
        both = Disagreement(gate=Gate(0.0))  # asks both models; nothing is written by it
        return open_backend(self.arguments, self.pair, both)

    def close(self) -> None:
        if "backend" in self.__dict__:
            self.backend.close()

"""The models of a stored run, for commands that read its texts again: their options, and the pair with its engine."""

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from lm_eval_takeover.arguments import KINDS, TWINS, ModelArguments
from lm_eval_takeover.backends import Backend, open_backend
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Disagreement
from lm_eval_takeover.pair.loading import load_pair
from lm_eval_takeover.runs.run_reader import RunReader

logger = logging.getLogger(__name__)

# What is taken from a folder, which a stranger may have made: names, revisions and dtypes. Nothing that runs code or says where
# weights go.
_RESTORED = {name for name, kind in KINDS.items() if kind.named}
_OTHERS = {name for name, kind in KINDS.items() if kind.key == "models"} - _RESTORED  # other models of the same files


def restore_arguments(run: RunReader, given: Mapping[str, Any]) -> ModelArguments:
    """The run's model arguments with those `given` on the command line. Raises ArgumentError where neither names a model."""
    own = dict(given)
    for role, names in (("base", TWINS), ("guide", TWINS.values())):
        if role in given:  # another repository
            own = {name: None for name in names if KINDS[name].own} | own
    _check_loading(run, given)
    stored = {name: value for name, value in run.arguments.items() if name in _RESTORED}
    arguments = ModelArguments.parse({**stored, **own})
    if (arguments.base is None) != (arguments.guide is None):
        missing = "base" if arguments.base is None else "guide"
        raise ArgumentError(f"--{missing} is missing: the run in '{run.folder}' (policy={run.policy}) has none")
    return arguments


def _check_loading(run: RunReader, given: Mapping[str, Any]) -> None:
    """Raise ArgumentError where the run's models were made with more than their files, and the command line is silent."""
    defaults = ModelArguments()
    for name in sorted(_OTHERS - given.keys()):
        value = run.arguments.get(name, getattr(defaults, name))
        if value != getattr(defaults, name) and ("guide" if name.startswith("guide_") else "base") not in given:
            raise ArgumentError(
                f"the run in '{run.folder}' was made with {name}={value}, which is not taken from a folder; where you trust "
                f"it, give --model_args {name}=…"
            )


class Readers:
    """A pair, and the engine that reads texts with it, which starts at the first text."""

    def __init__(self, arguments: ModelArguments) -> None:
        named = {"base": (arguments.base, arguments.revision), "guide": (arguments.guide, arguments.guide_revision)}
        models = [f"{role}={name}{f'@{at}' if at else ''}" for role, (name, at) in named.items() if name is not None]
        if models:
            code = "with their own code" if arguments.trust_remote_code else "without remote code"
            logger.warning("loading %s, %s", " and ".join(models), code)
        self.arguments, self.pair = arguments, load_pair(arguments)

    @cached_property
    def backend(self) -> Backend:
        both = Disagreement(gate=Gate(0.0))  # asks both models; nothing is written by it
        return open_backend(self.arguments, self.pair, both)

    def close(self) -> None:
        if "backend" in self.__dict__:
            self.backend.close()

"""The command that makes a missing calibration, for errors. A light import."""

import shlex
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lm_eval_takeover.arguments import ModelArguments, write_words

if TYPE_CHECKING:  # it loads NumPy
    from lm_eval_takeover.calibration.files import Calibration

Options = Mapping[str, Any]  # of `calibrate`, by their names


class RunTask(NamedTuple):
    """What will be run, for commands in errors: the first task of a call, and its `--include_path`."""

    task: str | None = None
    include_path: str | Path | None = None


NO_TASK = RunTask()


def calibration_command(
    arguments: ModelArguments, demo_prompts: Path, *, task: str | None = None, include_path: str | Path | None = None,
    options: Options | None = None, solving: Options | None = None, known: "Calibration | None" = None, extends: bool = False,
) -> str:  # fmt: skip
    """The command that makes a calibration for these arguments; `demo_prompts` are those of the bundled pair.

    `task` is what will be run, with its `--include_path`; the prompts of the bundled pair have its form already. `options` are of
    `calibrate`, and `solving` are those that solve a rate. The prompts are those of `known`, a file that the user gave.
    What is written is a new file, or, with `extends`, `known` with more rates.
    """
    base, guide, path = arguments.base, arguments.guide, arguments.calibration
    is_demo = base is None or guide is None
    given: dict[str, Any] = {} if is_demo else {"base": base, "guide": guide}
    given["direction"] = None if arguments.direction == "forward" else arguments.direction
    prompts = known.prompts if known is not None else {}
    if extends and known is not None and known.prompts and path is not None and Path(path).is_file():
        given |= {name: prompts.get(name) for name in ("task", "split", "field", "enable_thinking")} | known.decoding
        given |= {"prompts": prompts.get("dataset"), "apply_chat_template": prompts["chat_template"], "until": None}
        given |= {"num_prompts": prompts.get("asked"), "num_held_out": len(prompts.get("held_out_indices", ())) or None}
        given |= {"include_path": include_path if given["task"] else None, "diagnostic": bool(known.diagnostic)}
        given |= {**(solving or {}), "out": path, "extend": True}
    else:
        task = None if is_demo else task
        given |= {"task": task, "include_path": include_path if task else None}
        given["prompts"] = demo_prompts if is_demo else prompts.get("dataset", "openai/gsm8k:main")
        names = chain(["my-pair.json"], (f"my-pair-{number}.json" for number in count(2)))
        out = next(name for name in names if not Path(name).exists())
        given |= {**(solving or {}), **(options or {}), "out": out}
    return shlex.join(["lm-eval-takeover", "calibrate", *write_words(given)])

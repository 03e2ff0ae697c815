"""The command that makes a missing calibration, for errors. A light import."""

import shlex
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple


class RunTask(NamedTuple):
    """What will be run, for commands in errors: the first task of a call, and its `--include_path`."""

    task: str | None = None
    include_path: str | Path | None = None


NO_TASK = RunTask()


def calibration_command(
    base: str | None, guide: str | None, direction: str, demo_prompts: Path, *, task: str | None = None,
    include_path: str | Path | None = None, options: str = "", solving: str = "",
) -> str:  # fmt: skip
    """The command that makes a calibration for this pair; None stands for the bundled one, with the prompts `demo_prompts`.

    `task` is what will be run, with its `--include_path`; the prompts of the bundled pair have its form already. `options` and
    `solving`, those that solve a rate (`name_rate`), stand before `--out`. The file is a new one.
    """
    pair, prompts = f" --base {shlex.quote(str(base))} --guide {shlex.quote(str(guide))}", "openai/gsm8k:main"
    if base is None or guide is None:
        pair, prompts, task = "", shlex.quote(str(demo_prompts)), None
    reverse = " --direction reverse" if direction == "reverse" else ""
    form = f" --task {shlex.quote(task)}" if task else ""
    if task and include_path:
        form += f" --include_path {shlex.quote(str(include_path))}"
    names = chain(["my-pair.json"], (f"my-pair-{number}.json" for number in count(2)))
    out = next(name for name in names if not Path(name).exists())
    return f"lm-eval-takeover calibrate{pair}{reverse}{form} --prompts {prompts}{solving}{options} --out {out}"

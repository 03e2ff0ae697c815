"""Runs calls one after the other, each as the stock command would, on one pair that is loaded once.

`run_batch` does so here, `run_apart` in a process of its own, which gets the calls as they are. Output of a call goes into its
`log`, its progress bars go to the terminal. What is killed keeps the samples that are in the journals.
"""

import argparse
import contextlib
import ctypes
import functools
import gc
import os
import pickle
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval_takeover import stopping
from lm_eval_takeover.arguments import write_words
from lm_eval_takeover.tasks.context import Evaluation, evaluating

LM_EVAL, CALIBRATE = "lm_eval", "lm-eval-takeover calibrate"


@dataclass(frozen=True)
class Call:
    """One run of `lm_eval`, or of `calibrate`, with its `options` by name. What it prints goes into `log`."""

    row: str
    command: str
    options: Mapping[str, Any]
    log: Path
    alone: bool = False  # whether it needs a process of its own, since it does not use the loaded pair

    def __str__(self) -> str:
        """As people type it."""
        return f"{self.command} {shlex.join(write_words(self.options))}"


class CallFailed(subprocess.CalledProcessError):
    """A process ended with this exit status; it has said why."""


def run_apart(call: Call, *, quiet: bool = False) -> None:
    """Run a call to its end, in a process of its own. Raises CallFailed."""
    start_worker([__name__], given=pickle.dumps(([call], quiet)))


def start_worker(words: Sequence[str], stdout: int = 2, given: bytes | None = None) -> None:
    """Run `python -m WORDS` to its end, its output to stderr or `stdout`; `given` is its input. Raises CallFailed."""
    # The kernel stops the process if its parent is killed, so that it holds no run_dir (PR_SET_PDEATHSIG).
    first = functools.partial(ctypes.CDLL(None).prctl, 1, signal.SIGTERM) if sys.platform == "linux" else None
    source = None if given is None else subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-m", *words], stdin=source, stdout=stdout, preexec_fn=first)
    try:
        process.communicate(given)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if status := process.returncode:
        raise CallFailed(128 - status if status < 0 else status, words)


def main() -> None:
    stopping.install_error_hook()
    try:
        calls, quiet = pickle.load(sys.stdin.buffer)
        run_batch(calls, quiet=quiet)
    except BaseException as error:
        if (stop := stopping.find_stop(error)) is None:
            raise
        stopping.end_at_once()
        raise SystemExit(stopping.status(stop)) from None  # `compare` says what is kept


def run_batch(calls: Sequence[Call], *, quiet: bool = False) -> None:
    import torch

    read_harness_once()
    gc.freeze()  # what was imported is no garbage, and is looked through in no collection below
    pairs: dict[str, Any] = {}
    for call in calls:
        try:
            with _divert(call.log) as terminal:
                bars = {"desc": call.row, "file": terminal, "disable": quiet}
                with evaluating(Evaluation(pairs=pairs, bars=bars)):
                    run_calibrate(call.options) if call.command == CALIBRATE else run_lm_eval(call.options)
        except (Exception, SystemExit):
            print(f"{call.row}: failed; all that it printed is in '{call.log}'", file=sys.stderr)
            raise
        gc.collect()
        torch.cuda.empty_cache()
    pairs.clear()
    gc.collect()  # a process that is started next needs the memory of the pair
    torch.cuda.empty_cache()


@functools.cache
def read_harness_once() -> None:
    """Cache what lm-eval reads again in each call: facts about this machine, and its 14,000 task files, if any is asked for."""
    from lm_eval.config.evaluate_config import EvaluatorConfig
    from lm_eval.tasks._index import TaskIndex
    from torch.utils import collect_env

    from lm_eval_takeover.tasks.sampled import find_tasks

    build = functools.cache(TaskIndex.build)
    TaskIndex.build = staticmethod(lambda paths, **more: dict(build(tuple(paths), **more)))
    EvaluatorConfig.process_tasks = lambda own, metadata: find_tasks(own.tasks, own.include_path, metadata=metadata)
    collect_env.get_pretty_env_info = functools.cache(collect_env.get_pretty_env_info)


def run_calibrate(options: Mapping[str, Any]) -> None:
    """`calibrate` with these options; the others are at their defaults."""
    from lm_eval_takeover.commands.calibrate import command as calibrate

    parser = argparse.ArgumentParser(prog="lm-eval-takeover calibrate", allow_abbrev=False)
    calibrate.add_options(parser)
    if status := calibrate.run(parser.parse_args([], argparse.Namespace(**options))):
        raise SystemExit(status)


def run_lm_eval(options: Mapping[str, Any]) -> None:
    """What the stock command does with these options, once it has read them."""
    from lm_eval._cli.run import Run
    from lm_eval.utils import setup_logging

    setup_logging()
    Run._execute(argparse.Namespace(**options))


@contextlib.contextmanager
def _divert(log: Path) -> Iterator[Any]:
    """Send this process's output into the log; yields the terminal."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    descriptors = os.dup(1), os.dup(2)
    with log.open("w") as file, os.fdopen(os.dup(2), "w") as terminal:
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield terminal
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in zip((1, 2), descriptors, strict=True):
                os.dup2(copy, number)
                os.close(copy)


if __name__ == "__main__":
    main()

"""A process that runs calls one after the other, each as the stock command would, on one pair that is loaded once.

`python -m lm_eval_takeover.commands.compare.worker CALLS` reads a JSON list of `{"row", "words", "results", "log"}`; without
results the words are those of `lm-eval-takeover`. What a call prints goes into `log`; its bars go to the terminal. A call that
ended well is marked as done at once, so that a process that is killed loses the row at hand alone, and of that nothing that its
journal holds.
"""

import argparse
import contextlib
import functools
import gc
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm_eval_takeover.errors import install_error_hook
from lm_eval_takeover.storage.whole_files import write_text


def main() -> None:
    install_error_hook()
    read_harness_once()
    run_calls(json.loads(Path(sys.argv[1]).read_text()), quiet=sys.argv[2:] == ["--quiet"])


def run_calls(calls: list[dict[str, Any]], *, quiet: bool = False) -> None:
    """Each call, to its end; results that an interrupted one has left are removed, its samples stay."""
    from lm_eval_takeover.pair.loading import share_pairs
    from lm_eval_takeover.runs import progress

    with share_pairs():
        for call in calls:
            results = Path(call["results"]) if call["results"] else None
            if results:
                shutil.rmtree(results, ignore_errors=True)
            try:
                with (
                    _divert(Path(call["log"])) as terminal,
                    progress.show_on(None if quiet else terminal, call["row"]),
                ):
                    run_stock(call["words"]) if results else run_calibrate(call["words"][1:])
            except (Exception, SystemExit):
                print(f"{call['row']}: failed; all that it printed is in '{call['log']}'", file=sys.stderr)
                raise
            if results:
                write_text(results / "call.json", json.dumps({"words": call["words"]}) + "\n")
            _free_memory()


def read_harness_once() -> None:
    """Keep for all calls what lm-eval finds out anew in each: its own 14,000 task files, and what it says of this machine."""
    from lm_eval.tasks._index import TaskIndex
    from torch.utils import collect_env

    build = functools.cache(TaskIndex.build)
    TaskIndex.build = staticmethod(lambda paths, **more: dict(build(tuple(paths), **more)))
    collect_env.get_pretty_env_info = functools.cache(collect_env.get_pretty_env_info)


def run_calibrate(words: list[str]) -> None:
    """`lm-eval-takeover calibrate WORDS` in this process."""
    from lm_eval_takeover.commands.calibrate import command as calibrate

    parser = argparse.ArgumentParser(prog="lm-eval-takeover calibrate", allow_abbrev=False)
    calibrate.add_options(parser)
    if status := calibrate.run(parser.parse_args(words)):
        raise SystemExit(status)


def run_stock(words: list[str]) -> None:
    """`lm_eval WORDS` in this process."""
    sys.argv = ["lm_eval", *words]
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


@contextlib.contextmanager
def _divert(log: Path) -> Iterator[Any]:
    """Let this process write into the log, and give the terminal to whom may write there."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    kept = os.dup(1), os.dup(2)
    with log.open("w") as file, os.fdopen(os.dup(2), "w") as terminal:
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield terminal
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, number)
                os.close(copy)


def _free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

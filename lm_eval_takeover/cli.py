"""The command `lm-eval-takeover`: it finds the folders in `commands/` and `lab/`, and `serve/`, and knows none of their options.

A folder with a `command.py` is the subcommand of that name. The module has `HELP` (one line, for the list of commands),
`DESCRIPTION` and `EXAMPLE` (above and below the options of its own --help), `add_options(parser)` and `run(options)`. It returns
the exit status, and raises a TakeoverError, status 2, for what the user can put right. All modules are imported for --help, so
they leave torch, lm-eval and numpy to their `run`.
"""

import argparse
import itertools
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from lm_eval_takeover import __version__, commands, lab, stopping
from lm_eval_takeover.errors import nearest
from lm_eval_takeover.escaping import for_terminal, make_notices_visible
from lm_eval_takeover.storage.code_reach import find_version
from lm_eval_takeover.storage.files import describe_written, written


class _Parser(argparse.ArgumentParser):
    """argparse's own errors already exit with 2; this keeps them to one line."""

    def error(self, message: str) -> "None":  # type: ignore[override]
        print(f"error: {for_terminal(message)} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def list_versions() -> Iterator[tuple[str, str]]:
    """What a bug report needs: `(name, version)` of this package, with its commit in a checkout, and of libraries; the device."""
    import torch

    root = Path(__file__).parents[1]
    asked = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, cwd=root, capture_output=True, text=True).stdout if (root / ".git").exists() else ""
    yield "lm-eval-takeover", f"{__version__} {commit.strip()}".strip()
    yield "Python", f"{platform.python_version()}, {platform.platform()}"
    for name in ("lm_eval", "transformers", "torch", "vllm"):
        yield name, find_version(name) or "not installed"
    yield "device", torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"


def find_commands(word: str | None = None) -> Iterator[tuple[str, ModuleType]]:
    """`(name, command)` of every subcommand, in alphabetical order; of the one that is called `word`, where there is one."""
    places = [(f"{room.__name__}.", folder) for room in (commands, lab) for folder in room.__path__]
    found = [(path.parent.name, before) for before, folder in places for path in Path(folder).glob("*/command.py")]
    found.append(("serve", "lm_eval_takeover."))
    for name, before in sorted([one for one in found if one[0] == word] or found):
        yield name, import_module(f"{before}{name}.command")


def build_parser(word: str | None = None) -> argparse.ArgumentParser:
    """Of all commands, or of the one that `word` names."""
    parser = _Parser(prog="lm-eval-takeover", allow_abbrev=False, description="Tools for `--model guided-takeover`.")
    parser.add_argument("--version", action="store_true", help="print what a bug report needs, and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in find_commands(word):
        subparser = subparsers.add_parser(
            name,
            help=command.HELP,
            description=command.DESCRIPTION,
            epilog=command.EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_options(subparser)
        subparser.set_defaults(run=command.run, parser=subparser)
    return parser


def _underscored(word: str) -> str:
    """`--target-rate` as `--target_rate`; values, also those behind an equals sign, stay what they are."""
    if not word.startswith("--"):
        return word
    name, sign, value = word.partition("=")
    return re.sub(r"(?<=\w)-(?=\w)", "_", name) + sign + value


def _refuse_unknown(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End as argparse does where an option is unknown, with the nearest one of this command. Before options that are missing."""
    options = {option for action in parser._actions for option in action.option_strings}
    for name in (word.partition("=")[0] for word in itertools.takewhile(lambda word: word != "--", words)):
        if name.startswith("--") and name not in options:
            passed_on = "".join(f"; {action.help} go after `--`" for action in parser._actions if action.metavar == "-- OPTION")
            names = [option for option in options if option.startswith("--")]
            parser.error(f"unknown option '{name}'; {nearest(name, names)}{passed_on}")


def main(arguments: Sequence[str] | None = None) -> int:
    stopping.install_error_hook()
    make_notices_visible()
    written.clear()
    stopping.on_stop(describe_written)
    try:
        status = _run([_underscored(word) for word in (sys.argv[1:] if arguments is None else arguments)])
        sys.stdout.flush()
        return status
    except (KeyboardInterrupt, stopping.Terminated) as stop:
        return stopping.say_stopped(stop)
    except OSError as error:
        if error.filename is not None or not _is_output_closed():
            raise
        if isinstance(error, BrokenPipeError):  # as of `| head`, which has read enough
            return 128 + signal.SIGPIPE
        print(f"error: standard output cannot be written: {error.strerror}; make room or choose another", file=sys.stderr)
        return 2


def _run(words: Sequence[str]) -> int:
    """The exit status of the command that these words are."""
    parser = build_parser(words[0] if words else None)
    (subparsers,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if words == ["--version"]:
        print("\n".join(f"{name:<18}{value}" for name, value in list_versions()))
        return 0
    if words and words[0].startswith("-"):
        _refuse_unknown(parser, words[:1])
    elif words:
        if words[0] not in subparsers.choices:
            parser.error(f"unknown command '{words[0]}'; {nearest(words[0], subparsers.choices)}")
        _refuse_unknown(subparsers.choices[words[0]], words[1:])
    if "" in words or any(re.fullmatch("--[^=]*=", word) for word in words):
        parser.error("a word is empty; is a variable of the shell not set?")
    options, unexpected = parser.parse_known_args(words)
    if unexpected:
        options.parser.error(f"unexpected word '{unexpected[0]}'")
    return int(options.run(options))


def _is_output_closed() -> bool:
    """Whether standard output takes nothing. Nothing is written into it from then on."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())

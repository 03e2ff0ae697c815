import argparse
import re
import sys
from collections.abc import Iterable
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from lm_eval_takeover.commands._options import add_shared
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.storage.files import TASK_CONFIGS

if TYPE_CHECKING:
    from lm_eval_takeover.method.registry import Registry

ListedName = tuple[str, str]  # a name, and a line about it

HELP = "list packaged calibrations, scores, policies and tasks"
KINDS = ("calibrations", "scores", "policies", "tasks")
DESCRIPTION = "Print the names that other commands and model arguments take, and where each comes from."
EXAMPLE = """examples:
  lm-eval-takeover list
  lm-eval-takeover list scores policies --plugins my_gate.py
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kinds", nargs="*", default=[], metavar="KIND", help=f"of {', '.join(KINDS)} (default: all)")
    add_shared(parser, "plugins")


def run(options: argparse.Namespace) -> int:
    for kind in options.kinds:
        if kind not in KINDS:
            raise ArgumentError(f"KIND '{kind}' is not known; {nearest(kind, KINDS)}")
    from rich.console import Console

    from lm_eval_takeover.method.policy import policies
    from lm_eval_takeover.method.registry import load_plugins, scores

    load_plugins(options.plugins)
    makers = {
        "calibrations": _list_calibrations,
        "scores": lambda: _list_registered(scores),
        "policies": lambda: _list_registered(policies),
        "tasks": _list_tasks,
    }
    width, parts = max(Console().width, 40), []
    for kind in options.kinds or KINDS:
        lines = [kind]
        for name, about in makers[kind]():
            lines += wrap(f"  {name:<16}  {about}", width, subsequent_indent=" " * 20, break_long_words=False)
        parts.append("\n".join(lines) + "\n")
    sys.stdout.write("\n".join(parts))
    return 0


def _list_calibrations() -> Iterable[ListedName]:
    from lm_eval_takeover.calibration.files import packaged_calibrations, read_calibration

    for name, path in packaged_calibrations().items():
        calibration = read_calibration(path)
        rates = sorted({target.target_rate for target in calibration.targets})
        about = f"{calibration.source}: {calibration.base.id} with {calibration.guide.id}"
        yield name, about + (f", target rates {', '.join(f'{rate:g}' for rate in rates)}" if rates else "")


def _list_registered(registry: "Registry[Any]") -> Iterable[ListedName]:
    for name in registry.names():
        entry = registry.get(name)
        text = " ".join((getattr(entry, "function", entry).__doc__ or "").strip().split("\n\n")[0].split())
        source = "" if entry.source.name.startswith("lm_eval_takeover") else f"from {entry.source.name}"
        yield name, ": ".join(filter(None, (source, text)))


def _list_tasks() -> Iterable[ListedName]:
    files = sorted(TASK_CONFIGS.glob("takeover_*.yaml"))
    members = {
        path.stem: re.findall(r"^  - (?:task: )?(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE) for path in files
    }
    return sorted(((name, ", ".join(inside)) for name, inside in members.items()), key=lambda row: bool(row[1]))

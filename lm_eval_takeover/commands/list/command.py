"""The options of `list`, and every name with where it comes from and a line about it."""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from lm_eval_takeover.commands._options import add_shared
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.storage.paths import TASK_CONFIGS

if TYPE_CHECKING:
    from lm_eval_takeover.method.registry import Registry

Row = dict[str, str]

HELP = "list packaged calibrations, scores, policies and tasks"
KINDS = ("calibrations", "scores", "policies", "tasks")
DESCRIPTION = "Print the names that other commands and model arguments take, and where each comes from."
EXAMPLE = """examples:
  lm-eval-takeover list
  lm-eval-takeover list scores policies --plugins my_gate.py
"""
_PACKAGE = "lm-eval-takeover"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (default: all)")
    add_shared(parser, "plugins", "format", format={"choices": ("table", "json")})


def run(options: argparse.Namespace) -> int:
    for kind in options.kinds:
        if kind not in KINDS:
            raise ArgumentError(f"KIND '{kind}' is not known; {nearest(kind, KINDS)}")
    from lm_eval_takeover.commands._output import write_json
    from lm_eval_takeover.method.policy import policies
    from lm_eval_takeover.method.registry import load_plugins, scores

    load_plugins(options.plugins)
    makers = {
        "calibrations": _list_calibrations,
        "scores": lambda: _list_registered("score", scores),
        "policies": lambda: _list_registered("policy", policies),
        "tasks": _list_tasks,
    }
    rows = [row for kind in options.kinds or KINDS for row in makers[kind]()]
    sys.stdout.write(write_json({"rows": rows}) if options.format == "json" else _write_names(rows))
    return 0


def _write_names(rows: Sequence[Row]) -> str:
    """The rows below their kinds, folded to the terminal."""
    from rich.console import Console

    lines, kind, width = list[str](), "", max(Console().width, 40)
    for row in rows:
        if row["kind"] != kind:
            kind = row["kind"]
            lines += ["", kind]
        source = "" if row["from"] == _PACKAGE else f"from {row['from']}"
        about = ": ".join(part for part in (source, row["about"]) if part)
        lines += wrap(f"  {row['name']:<16}  {about}", width, subsequent_indent=" " * 20, break_long_words=False)
    return "\n".join(lines[1:]) + "\n"


def _row(kind: str, name: str, source: str, about: str) -> Row:
    return {"kind": kind, "name": name, "from": source, "about": about}


def _list_calibrations() -> Iterable[Row]:
    from lm_eval_takeover.calibration.files import packaged_calibrations, read_calibration

    for name, path in packaged_calibrations().items():
        calibration = read_calibration(path)
        rates = sorted({target.target_rate for target in calibration.targets})
        about = f"{calibration.base.id} with {calibration.guide.id}"
        about += f", target rates {', '.join(f'{rate:g}' for rate in rates)}" if rates else ""
        yield _row("calibration", name, calibration.source or _PACKAGE, about)


def _list_registered(kind: str, registry: "Registry[Any]") -> Iterable[Row]:
    for name in registry.names():
        entry = registry.get(name)
        text = (getattr(entry, "function", entry).__doc__ or "").strip().split("\n\n")[0]
        source = entry.source.name
        yield _row(kind, name, _PACKAGE if source.startswith("lm_eval_takeover") else source, " ".join(text.split()))


def _list_tasks() -> Iterable[Row]:
    files = sorted(TASK_CONFIGS.glob("takeover_*.yaml"))
    members = {path.stem: re.findall(r"^  - (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE) for path in files}
    yield from (_row("task", name, _PACKAGE, "") for name, inside in members.items() if not inside)
    yield from (_row("group", name, _PACKAGE, ", ".join(inside)) for name, inside in members.items() if inside)

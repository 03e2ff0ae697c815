"""Writes into docs/ what would go stale there: the model arguments, and the figures of the demo.

    python scripts/write_docs_tables.py             writes
    python scripts/write_docs_tables.py --check     names the pages that are stale, exit status 1

A page says where, by two comments: `<!-- written by scripts/write_docs_tables.py: NAME -->` and `<!-- end of NAME -->`.

    arguments       every field of ModelArguments with its default, from the `#:` comments above it
    policies        likewise, every field that only one of our policies has
    commands        every option of every `lm-eval-takeover` command, from its parser
    demo, gate      the table of methods and the check against true decisions, from docs/images/demo.json
    frontier, areas methods at equal cost, and what lies under their curves, from docs/images/frontier.json
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import getsource
from pathlib import Path
from typing import Any

from draw_demo_results import FIGURES
from measure_demo_frontier import areas_table, rates_table

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.cli import build_parser
from lm_eval_takeover.method.policy import policies

ROOT = Path(__file__).parent.parent
PLACE = re.compile(
    r"(?P<start><!-- written by scripts/write_docs_tables\.py: (?P<name>\w+) -->\n).*?(?P<end><!-- end of (?P=name) -->)",
    re.DOTALL,
)


def arguments_table() -> str:
    """One row per model argument. What stands behind `None:` in a comment is the default of a field that has none."""
    meanings = dict(_meanings(getsource(ModelArguments)))
    rows = ["| argument | meaning | default |", "|---|---|---|"]
    for field in fields(ModelArguments):
        if field.default is MISSING:  # what is collected from the others
            continue
        if field.name not in meanings:
            raise SystemExit(f"error: ModelArguments.{field.name} has no '#:' comment that says what it means")
        meaning, _, otherwise = meanings[field.name].partition(" None: ")
        if (field.default is None) != bool(otherwise):
            raise SystemExit(f"error: 'None: …' of ModelArguments.{field.name} goes with a default of None only")
        rows.append(f"| `{field.name}` | {meaning.rstrip('.')} | {otherwise or f'`{field.default}`'} |")
    return "\n".join(rows)


def policy_arguments_table() -> str:
    """One row per field of one of our policies that is no field of ModelArguments."""
    rows = ["| policy | argument | meaning | default |", "|---|---|---|---|"]
    shared = {field.name for field in fields(ModelArguments)}
    for kind in policies:
        meanings = dict(_meanings(getsource(kind)))
        rows += [
            f"| `{kind.name}` | `{field.name}` | {meanings[field.name].rstrip('.')} | `{field.default}` |"
            for field in fields(kind)
            if field.name not in {"gate", *shared}
        ]
    return "\n".join(rows)


def _meanings(source: str) -> list[tuple[str, str]]:
    """(field, its `#:` comment as one line)."""
    commented = re.findall(r"((?:^ +#: .*\n)+) +(\w+): ", source, re.MULTILINE)
    return [(name, " ".join(re.findall(r"#: (.*)", lines))) for lines, name in commented]


def commands_reference() -> str:
    """A section per command: its description, its options, its examples."""
    (subcommands,) = [action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return "\n\n".join(_command_section(name, parser) for name, parser in sorted(subcommands.choices.items()))


def _command_section(name: str, parser: argparse.ArgumentParser) -> str:
    rows = ["| option | meaning |", "|---|---|"]
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        value = action.metavar or ",".join(action.choices or [] if action.nargs != 0 else [])
        if not value and action.nargs != 0:
            value = action.dest.upper()
        several = " …" if action.nargs in ("+", "*") else ""
        option = " ".join([*action.option_strings[:1], *([f"{value}{several}"] if value else [])])
        meaning = " ".join((action.help or "").replace("%%", "%").split()) + (" (required)" if action.required else "")
        rows.append(f"| `{option}` | {meaning} |")
    examples = "\n".join(f"    {line[2:]}" for line in (parser.epilog or "").splitlines()[1:])
    description = " ".join((parser.description or "").split())
    return "\n\n".join(part for part in (f"## {name}", description, examples, "\n".join(rows)) if part)


def demo_table() -> str:
    rows = [
        "|Method|Realized rate|Acc|Pass@8|Recovery Acc|Recovery Pass@8|",
        "|------|------------:|--:|-----:|-----------:|--------------:|",
    ]
    for row in _figures()["methods"]:
        shares = [f"{row[name]:.1%}" for name in ("realized_rate", "acc", "pass8")]
        recoveries = [f"{row[name]:.0%}" for name in ("recovery_acc", "recovery_pass8")]
        rows.append(f"|{'|'.join([row['method'], *shares, *recoveries])}|")
    return "\n".join(rows)


def gate_sentence() -> str:
    gate = _figures()["gate"]
    return (
        f"Of {gate['takeovers']:,} takeovers {gate['precision']:.1%} stand at a true decision, and of {gate['decisions']:,} "
        f"true\ndecisions {gate['recall']:.1%} are taken over (one sample a problem)."
    )


def _figures() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(FIGURES.read_text())
    return figures


WRITTEN: dict[str, Callable[[], str]] = {
    "arguments": arguments_table,
    "policies": policy_arguments_table,
    "commands": commands_reference,
    "demo": demo_table,
    "gate": gate_sentence,
    "frontier": rates_table,
    "areas": areas_table,
}


def written(page: str) -> str:
    """The page with all its places filled in."""
    return PLACE.sub(lambda place: f"{place['start']}{WRITTEN[place['name']]()}\n{place['end']}", page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a page is stale")
    options = parser.parse_args()
    stale = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        before = path.read_text()
        after = written(before)
        if after != before:
            stale.append(path.relative_to(ROOT).as_posix())
            if not options.check:
                path.write_text(after)
    if stale:
        print(f"{'stale' if options.check else 'written'}: {', '.join(stale)}", file=sys.stderr if options.check else None)
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())

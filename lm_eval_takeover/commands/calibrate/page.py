"""What `calibrate` prints, the page beside a calibration file, and `--compare`: the paper's Table 13 for any such files."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lm_eval_takeover.calibration.files import find_calibration, packaged_calibrations
from lm_eval_takeover.calibration.thresholds import DEFAULT_RHO, KAPPA_RULES, LOWEST, Calibration
from lm_eval_takeover.commands._output import Table, write_markdown, write_terminal
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import TASK_SAMPLING, Sampling

SPIKE_RATIOS = (0.005, 0.01, 0.03, 0.05, 0.1)  # the columns of measured calibrations
_LONG = ("indices", "held_out_indices", "template_digest", "problems")  # of prompts; left to the file


def rate_table(calibration: Calibration, scores: Sequence[str] | None = None) -> Table:
    """tau, both kappas and the replayed shares of takeovers by score and spike ratio."""
    columns = ["score", "spike ratio", "mean (nats)", "tau (nats)"]
    columns += ["kappa", "takeovers", "tail kappa", "tail takeovers"]  # in the order of KAPPA_RULES
    rows = []
    for score in scores or calibration.scores:
        for row in calibration.scores[score].table:
            cells = [score, f"{row['rho']:.1%}", f"{calibration.scores[score].mean:.4g}", f"{row['tau']:.4g}"]
            for rule in KAPPA_RULES:
                share = row.get(f"share_{rule}")
                cells += [f"{row[f'kappa_{rule}']:.4g}", "-" if share is None else f"{share:.2%}"]
            rows.append(cells)
    return Table(columns, rows, names=2)


def target_table(calibration: Calibration) -> Table:
    columns = ["method", "argument", "target rate", "value", "realized on held-out prompts", "prompts", "tokens"]
    rows = []
    for target in calibration.targets:
        rates = f"{target.target_rate:.1%}", f"{target.value:.5g}", f"{target.realized_rate:.2%}"
        rows.append([target.name, target.budget_parameter, *rates, str(target.prompts), f"{target.tokens:,}"])
    return Table(columns, rows, names=2)


def describe_rollouts(calibration: Calibration) -> str:
    """Numbers of rollouts, prompts and tokens, and the share that was cut."""
    rollouts, prompts = calibration.rollouts or 0, calibration.prompts.get("asked")
    fewer = f" ({prompts} prompts were asked for)" if prompts and prompts != rollouts else ""
    cut = calibration.cut or 0
    share = f"; {cut} of them ({cut / rollouts:.1%}) were cut at their limit" if cut else ""
    return f"{rollouts} rollouts{fewer}, {calibration.tokens or 0:,} tokens{share}"


def list_limits(calibration: Calibration) -> list[str]:
    """How far not to trust it."""
    lines = []
    if calibration.diagnostic:
        lines.append(f"Measured on problems of {', '.join(calibration.diagnostic)}; runs on these refuse it.")
    if calibration.tokens and (least := 30 / calibration.tokens) > LOWEST:
        lines.append(f"few tokens: below a spike ratio of {least:.2g}, fewer than 30 of them lie above tau")
    return lines


def render_page(
    calibration: Calibration, path: str | None = None, given: Mapping[str, str] | None = None, include_path: str | None = None
) -> str:
    """The page as Markdown. `path`, the model arguments `given` and `include_path` are as `calibrate` was called with."""
    measured = calibration.source == "measured"
    made = "made by `lm-eval-takeover calibrate`" if measured else "read off a published table"
    file = path or (calibration.name if calibration.name in packaged_calibrations() else f"{calibration.name}.json")
    parts = [
        f"# Calibration `{calibration.name}`",
        f"Thresholds of the takeover gate for one pair of models, {made}.",
        f"    {_write_command(calibration, file, given or {}, include_path)}",
        write_markdown(Table(["", ""], _list_facts(calibration), list_limits(calibration), names=2)),
        "## Rates",
    ]
    if measured:
        parts += [
            f"`spike ratio` is the share of these tokens above `tau`. `takeovers` is the share at which the gate fires on these "
            f"rollouts, with its test against the last {calibration.window} scores. `tail` is `kappa_rule=tail_to_mean`. A run "
            f"realizes another rate: each takeover changes what follows.",
            write_markdown(rate_table(calibration)),
        ]
    else:
        parts += [write_markdown(t) for score in calibration.columns for t in compare([calibration], score).values()]
        parts.append(
            "The cells are `tau` in nats / `kappa`. Column 1 is the strictest; `calibration=NAME:2` chooses the second. Their "
            "spike ratios are not known, so calibrate your own pair where you can."
        )
    if calibration.targets:
        parts += ["Rates solved for on held-out prompts (`target_rate=…`):", write_markdown(target_table(calibration))]
    if calibration.notes:
        parts += ["## Notes", calibration.notes]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _list_facts(calibration: Calibration) -> list[list[str]]:
    """Facts of the measurement, by their names in the file."""
    prompts = {name: value for name, value in calibration.prompts.items() if name not in _LONG}
    groups = {"vocabulary": calibration.vocabulary or {}, "prompts": prompts, "decoding": calibration.decoding}
    groups |= {"dtypes": calibration.dtypes}
    facts: dict[str, Any] = {"base": calibration.base, "guide": calibration.guide, "direction": calibration.direction}
    facts |= {f"{group} {name}": value for group, values in groups.items() for name, value in values.items()}
    facts |= {"rollouts": describe_rollouts(calibration)} if calibration.rollouts else {}
    shown = {name: ", ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
    return [[name, str(value)] for name, value in shown.items() if value not in (None, "")]


def _write_command(calibration: Calibration, file: str, given: Mapping[str, str], include_path: str | None) -> str:
    """The command that uses it: a run that it fits, or a comparison where it may not be run with."""
    if calibration.diagnostic:
        return shlex.join(["lm-eval-takeover", "calibrate", "--compare", file])
    prompts, is_demo = calibration.prompts, calibration.base.id == "demo-base"
    task = prompts.get("task") or ("takeover_demo" if is_demo else "takeover_math")
    arguments: dict[str, object] = {}
    if not is_demo or "base" in given:
        arguments = {role: given.get(role, getattr(calibration, role).id) for role in ("base", "guide")}
    words = ["--tasks", task, *(["--include_path", include_path] if include_path else [])]
    if calibration.source == "published":
        arguments["calibration"] = f"{file}:1"
    else:
        own = {"direction": calibration.direction, "enable_thinking": prompts["enable_thinking"]}
        arguments |= {"calibration": file} | {name: value for name, value in own.items() if value not in ("forward", None)}
        solved = [{"target_rate": f"{each.target_rate:g}", **each.arguments} for each in calibration.targets[:1]]
        arguments |= solved[0] if solved else {"spike_ratio": DEFAULT_RHO}  # the first rate that was solved for
        arguments |= {name: value for name, value in given.items() if name == "plugins"}
        words += ["--apply_chat_template"] if prompts["chat_template"] else []
        decoding = Sampling(**{name: calibration.decoding[name] for name in ("temperature", "top_p", "top_k")})
        if not task.startswith("takeover_") or decoding != TASK_SAMPLING:
            words += ["--gen_kwargs", _join({"do_sample": decoding.temperature != 0, **asdict(decoding)})]
    return shlex.join(["lm_eval", "--model", "guided-takeover", "--model_args", _join(arguments), *words])


def _join(values: Mapping[str, object]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def print_comparison(options: argparse.Namespace) -> int:
    """Print a table per score. Returns the exit status."""
    calibrations = [find_calibration(name) for name in options.compare]
    for name, (_, column) in zip(options.compare, calibrations, strict=True):
        if column is not None:
            raise ArgumentError(f"--compare '{name}': all columns are compared; leave out ':{column}'")
    tables = [compare([calibration for calibration, _ in calibrations], score, options.kappa_rule) for score in options.score]
    print("\n".join(f"{title}\n\n{write_terminal(table)}" for part in tables for title, table in part.items()), end="")
    return 0


def compare(calibrations: Sequence[Calibration], score: str, kappa_rule: str = KAPPA_RULES[0]) -> dict[str, Table]:
    """By title a table of (tau, kappa) by calibration set, with kappa / tau and their spread: one of all measured ones, one of
    each published table.
    """
    tables: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for calibration in calibrations:
        if calibration.source == "measured":
            thresholds = map(calibration.score(score).threshold, SPIKE_RATIOS)
            new = {calibration.name: [(each.tau, each.kappa(kappa_rule)) for each in thresholds]}
            by = f"{kappa_rule}, by spike ratio"
        else:
            printed = calibration.published_rows(score)
            new = {name: [(cell["tau"], cell["kappa"]) for cell in cells] for name, cells in printed.items()}
            by = f"'{calibration.name}' (published), by column"
        rows = tables.setdefault(f"tau (nats) / kappa of {score}, {by}", {})
        rows |= {name if name not in rows else f"{name} ({len(rows) + 1})": cells for name, cells in new.items()}
    return {title: _lay_out(rows, SPIKE_RATIOS if title.endswith("ratio") else ()) for title, rows in tables.items()}


def _lay_out(rows: Mapping[str, Sequence[tuple[float, float]]], ratios: Sequence[float]) -> Table:
    lines = []
    for name, cells in rows.items():
        quotients = [kappa / tau for tau, kappa in cells if tau > 0]
        span = f"{min(quotients):.3f} to {max(quotients):.3f}" if quotients else "-"
        lines.append([name, *(f"{tau:.3f} / {kappa:.3f}" for tau, kappa in cells), span])
    if len(rows) > 1:
        columns = [list(zip(*column, strict=True)) for column in zip(*rows.values(), strict=True)]
        spreads = [[f"{max(v) / min(v):.3f}" if min(v) > 0 else "-" for v in pair] for pair in columns]
        lines.append(["largest over smallest", *map(" / ".join, spreads), ""])
    headings = [f"{rho:.1%}" for rho in ratios] or [f"column {number}" for number in range(1, len(lines[0]) - 1)]
    return Table(["calibration set", *headings, "kappa / tau"], lines)

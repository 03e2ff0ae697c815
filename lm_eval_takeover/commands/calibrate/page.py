"""What `calibrate` prints, the page beside a calibration file, and `--compare`: the paper's Table 13 for any such files."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from lm_eval_takeover.calibration.files import find_calibration, packaged_calibrations
from lm_eval_takeover.calibration.thresholds import DEFAULT_RHO, KAPPA_RULES, Calibration
from lm_eval_takeover.commands._output import Table, write_markdown, write_terminal
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policy import DIRECTIONS
from lm_eval_takeover.method.request import TASK_SAMPLING, Sampling

SPIKE_RATIOS = (0.005, 0.01, 0.03, 0.05, 0.1)  # the columns of measured calibrations
Cell = tuple[float, float]  # tau in nats, and kappa


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
    """The solved realized rates."""
    columns = ["method", "argument", "target rate", "value", "realized on held-out prompts", "prompts", "tokens"]
    rows = []
    for target in calibration.targets:
        rates = f"{target.target_rate:.1%}", f"{target.value:.5g}", f"{target.realized_rate:.2%}"
        rows.append([target.name, target.budget_parameter, *rates, str(target.prompts), f"{target.tokens:,}"])
    return Table(columns, rows, names=2)


def describe_rollouts(calibration: Calibration) -> str:
    """How many rollouts and tokens there were, beside how many prompts were asked for, and the share that was cut."""
    rollouts, asked = calibration.rollouts or 0, calibration.prompts.get("asked")
    fewer = f" ({asked} prompts were asked for)" if asked and asked != rollouts else ""
    cut = calibration.cut or 0
    share = f"; {cut} of them ({cut / rollouts:.1%}) were cut at their limit" if cut else ""
    return f"{rollouts} rollouts{fewer}, {calibration.tokens or 0:,} tokens{share}"


def render_page(
    calibration: Calibration,
    path: str | None = None,
    given: Mapping[str, str] | None = None,
    include_path: str | None = None,
) -> str:
    """The page as Markdown. `path`, the model arguments `given` and `include_path` are as `calibrate` was called with."""
    measured = calibration.source == "measured"
    made = "made by `lm-eval-takeover calibrate`" if measured else "read off a published table"
    file = path or (calibration.name if calibration.name in packaged_calibrations() else f"{calibration.name}.json")
    facts = Table(["", ""], [[name, text] for name, text in _list_facts(calibration).items()], names=2)
    parts = [
        f"# Calibration `{calibration.name}`",
        f"Thresholds of the takeover gate for one pair of models, {made}.",
        f"    {_write_command(calibration, file, given or {}, include_path)}",
        write_markdown(facts),
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
        tables = (compare_columns(calibration, score) for score in calibration.columns)
        parts += [write_markdown(table) for each in tables for table in each.values()]
        parts.append(
            "The cells are `tau` in nats / `kappa`. Column 1 is the strictest; `calibration=NAME:2` chooses the second. Their "
            "spike ratios are not known, so calibrate your own pair where you can."
        )
    if calibration.targets:
        parts += ["Rates solved for on held-out prompts (`target_rate=…`):", write_markdown(target_table(calibration))]
    if calibration.notes:
        parts += ["## Notes", calibration.notes]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _list_facts(calibration: Calibration) -> dict[str, str]:
    """What it was measured on, and how far to trust it, by name."""
    models = {"base": calibration.base, "guide": calibration.guide}
    facts = {role: f"{model.id}, revision {(model.revision or 'not known')[:23]}" for role, model in models.items()}
    facts["direction"] = f"{calibration.direction}: the {DIRECTIONS[calibration.direction][0]} writes by default"
    if calibration.vocabulary is None:
        return facts
    prompts, decoding, vocabulary = calibration.prompts, calibration.decoding, calibration.vocabulary
    thinking: bool | None = prompts["enable_thinking"]
    form = "in the chat template of the guide" + (f", enable_thinking={thinking}" if thinking is not None else "")
    split = f", split {prompts['split']}" if prompts.get("split") else ""
    checked = [name for name in prompts.get("checked_against", []) if name not in calibration.diagnostic]
    worst = max(held.rank_error for held in calibration.scores.values())
    facts |= {
        "shared vocabulary": f"{vocabulary['size']:,} tokens, {vocabulary['digest'][:23]}",
        "prompts": f"{prompts['dataset']}{split}, drawn with seed {prompts['seed']}",
        "licence of the prompts": prompts.get("license") or "not stated",
        "form of the prompts": form if prompts["chat_template"] else "without a chat template",
        "template of the task": prompts.get("task") or "none",
        "none is a problem of": ", ".join(checked) or "(no benchmark was at hand)",
        "rollouts": describe_rollouts(calibration),
        "decoding": f"temperature {decoding['temperature']:g}, top-p {decoding['top_p']:g}, top-k {decoding['top_k']:g}, at most "
        f"{decoding['max_gen_toks']:,} new tokens, seed {decoding['seed']}",
        "dtypes": ", ".join(f"{role} in {dtype}" for role, dtype in calibration.dtypes.items()),
        "quantiles": "exact" if worst == 0 else f"within {worst:.4%} of the rank asked for",
    }
    if calibration.diagnostic:
        facts["diagnostic"] = f"measured on problems of {', '.join(calibration.diagnostic)}; runs on these refuse it"
    if calibration.sparse_below is not None:
        facts["few tokens"] = f"below a spike ratio of {calibration.sparse_below:.2g}, fewer than 30 lie above tau"
    if zero := [name for name, held in calibration.scores.items() if held.mean == 0]:
        facts["scores that are all 0"] = f"{', '.join(zero)}: their gates fire on every score above 0"
    return facts


def _write_command(calibration: Calibration, file: str, given: Mapping[str, str], include_path: str | None) -> str:
    """The command that uses it: a run that it fits, or a comparison where it may not be run with."""
    if calibration.diagnostic:
        return shlex.join(["lm-eval-takeover", "calibrate", "--compare", file])
    prompts, is_demo = calibration.prompts, calibration.base.id == "demo-base"
    task = prompts.get("task") or ("takeover_demo" if is_demo else "takeover_math")
    arguments: dict[str, object] = {}
    if not is_demo or "base" in given:
        arguments = {"base": calibration.base.id, "guide": calibration.guide.id}
    arguments |= {role: name for role, name in given.items() if role in arguments}
    arguments |= {"calibration": file if calibration.source == "measured" else f"{file}:1"}
    words = ["--tasks", task, *(["--include_path", include_path] if include_path else [])]
    if calibration.source == "measured":
        plugins = {"plugins": given["plugins"]} if "plugins" in given else {}
        arguments |= _list_gate_arguments(calibration) | plugins
        words += ["--apply_chat_template"] if prompts["chat_template"] else []
        decoding = Sampling(**{name: calibration.decoding[name] for name in ("temperature", "top_p", "top_k")})
        if not task.startswith("takeover_") or decoding != TASK_SAMPLING:
            settings = {"do_sample": decoding.temperature != 0, **asdict(decoding)}
            words += ["--gen_kwargs", _join(settings)]
    return shlex.join(["lm_eval", "--model", "guided-takeover", "--model_args", _join(arguments), *words])


def _list_gate_arguments(calibration: Calibration) -> dict[str, object]:
    """The model arguments beside the pair that are not at their defaults, with the first rate that was solved for."""
    arguments: dict[str, object] = {} if calibration.direction == "forward" else {"direction": calibration.direction}
    if (thinking := calibration.prompts["enable_thinking"]) is not None:
        arguments["enable_thinking"] = thinking
    if not calibration.targets:
        return arguments | {"spike_ratio": DEFAULT_RHO}
    target = calibration.targets[0]
    return arguments | {"target_rate": f"{target.target_rate:g}"} | target.arguments


def _join(values: Mapping[str, object]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def print_comparison(options: argparse.Namespace) -> int:
    """Print a table per score. Returns the exit status."""
    calibrations = [_find_whole(name) for name in options.compare]
    tables = [compare_calibrations(calibrations, score, options.kappa_rule) for score in options.score]
    print("\n".join(f"{title}\n\n{write_terminal(table)}" for part in tables for title, table in part.items()), end="")
    return 0


def _find_whole(name: str) -> Calibration:
    """The calibration of this name; ArgumentError where one of its columns is named."""
    calibration, column = find_calibration(name)
    if column is not None:
        raise ArgumentError(f"--compare '{name}': all columns are compared; leave out ':{column}'")
    return calibration


def compare_calibrations(
    calibrations: Sequence[Calibration], score: str = "ce", kappa_rule: str = KAPPA_RULES[0]
) -> dict[str, Table]:
    """By title a table of tau and kappa by calibration set, their spread, and kappa / tau."""
    tables = {}
    measured = [calibration for calibration in calibrations if calibration.source == "measured"]
    names = [calibration.name for calibration in measured]
    rows: dict[str, list[Cell]] = {}
    for number, (name, calibration) in enumerate(zip(names, measured, strict=True), 1):
        thresholds = map(calibration.score(score).threshold, SPIKE_RATIOS)
        label = name if names.count(name) == 1 else f"{name} ({number})"
        rows[label] = [(threshold.tau, threshold.kappa(kappa_rule)) for threshold in thresholds]
    if rows:
        title = f"tau (nats) / kappa of {score}, {kappa_rule}, by spike ratio"
        tables[title] = _make_table([f"{rho:.1%}" for rho in SPIKE_RATIOS], rows)
    published = [calibration for calibration in calibrations if calibration.source == "published"]
    return tables | {title: table for each in published for title, table in compare_columns(each, score).items()}


def compare_columns(calibration: Calibration, score: str) -> dict[str, Table]:
    """The same of the rows of one published table, by column."""
    rows = {name: [(c["tau"], c["kappa"]) for c in cells] for name, cells in calibration.published_rows(score).items()}
    columns = [f"column {number + 1}" for number in range(max(map(len, rows.values())))]
    title = f"tau (nats) / kappa of {score}, '{calibration.name}' (published), by column"
    return {title: _make_table(columns, rows, rounded=True)}


def _make_table(columns: Sequence[str], rows: dict[str, list[Cell]], *, rounded: bool = False) -> Table:
    lines = [[name, *(f"{tau:.3f} / {kappa:.3f}" for tau, kappa in cells)] for name, cells in rows.items()]
    for line, cells in zip(lines, rows.values(), strict=True):
        quotients = [kappa / tau for tau, kappa in cells if tau > 0]
        span = f"{min(quotients):.3f} to {max(quotients):.3f}" if quotients else "-"
        line += [span, "yes" if is_constant(cells, rounded=rounded) else "no"]
    if len(rows) > 1:
        spans = [" / ".join(map(_describe_spread, zip(*row, strict=True))) for row in zip(*rows.values(), strict=True)]
        lines.append(["largest over smallest", *spans, "", ""])
    return Table(["calibration set", *columns, "kappa / tau", "constant"], lines)


def is_constant(cells: Sequence[Cell], *, rounded: bool = False) -> bool:
    """Whether kappa / tau is one number to three digits, as with threshold_to_mean; `rounded`: numbers of a printed table."""
    quotients = [kappa / tau for tau, kappa in cells if tau > 0] or [0.0]
    slack = 0.0005 / min((tau for tau, _ in cells if tau > 0), default=1.0) if rounded else 0.0
    return max(quotients) - min(quotients) <= max(quotients) * max(0.0005, 2 * slack)


def _describe_spread(values: Sequence[float]) -> str:
    return f"{max(values) / min(values):.3f}" if min(values) > 0 else "-"

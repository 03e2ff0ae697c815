"""The page beside a calibration file: what it was measured on, what it gives, and how far to trust it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from lm_eval_takeover.calibration.files import packaged_calibrations
from lm_eval_takeover.calibration.thresholds import DEFAULT_RHO, KAPPA_RULES, Calibration
from lm_eval_takeover.method.policy import DIRECTIONS
from lm_eval_takeover.method.request import TASK_SAMPLING, Sampling


@dataclass(frozen=True, slots=True)
class Call:
    """How `calibrate` was called: with it the page's command runs as printed, from the same folder."""

    path: str  # of the calibration file
    base: str | None = None
    guide: str | None = None
    plugins: str | None = None
    include_path: str | None = None


def rate_table(calibration: Calibration, scores: Sequence[str] | None = None) -> str:
    """tau, both kappas and the replayed shares of takeovers by score and rho, as Markdown."""
    lines = [
        "|score|mean (nats)|spike ratio|tau (nats)|kappa threshold_to_mean|takeovers|kappa tail_to_mean|takeovers|",
        "|-----|----------:|----------:|---------:|----------------------:|--------:|-----------------:|--------:|",
    ]
    for score in scores or calibration.scores:
        held = calibration.scores[score]
        for row in held.table:
            cells = [score, f"{held.mean:.4g}", f"{row['rho']:.1%}", f"{row['tau']:.4g}"]
            for rule in KAPPA_RULES:
                kappa, share = row[f"kappa_{rule}"], row.get(f"share_{rule}")
                cells += [f"{kappa:.4g}", "-" if share is None else f"{share:.2%}"]
            lines.append(f"|{'|'.join(cells)}|")
    return "\n".join(lines)


def target_table(calibration: Calibration) -> str:
    """The solved realized rates, as Markdown."""
    lines = [
        "|target rate|method|argument|value|realized on held-out prompts|prompts|tokens|",
        "|----------:|------|--------|----:|---------------------------:|------:|-----:|",
    ]
    lines += [
        f"|{t.target_rate:.1%}|{t.name}|{t.budget_parameter}|{t.value:.5g}|{t.realized_rate:.2%}|{t.prompts}|{t.tokens:,}|"
        for t in calibration.targets
    ]
    return "\n".join(lines)


def _column_tables(calibration: Calibration) -> str:
    parts = []
    for score, rows in calibration.columns.items():
        width = max(map(len, rows.values()))
        titles = "|".join(f"column {number + 1}: tau / kappa" for number in range(width))
        lines = [
            f"|{score}: calibration set|{titles}|",
            f"|---|{'---:|' * width}",
        ]
        for name, cells in rows.items():
            label = f"{name} (default)" if name == calibration.default_row else name
            columns = [f"{cell['tau']:.3f} / {cell['kappa']:.3f}" for cell in cells]
            lines.append(f"|{label}|{'|'.join(columns)}|")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def render_page(calibration: Calibration, call: Call | None = None) -> str:
    """The whole page as Markdown; without a `call` its command names models and file as the calibration does."""
    host, _ = DIRECTIONS[calibration.direction]
    lines = [
        f"# Calibration `{calibration.name}`",
        "",
        "Thresholds of the takeover gate for one pair of models, made by `lm-eval-takeover calibrate`."
        if calibration.source == "measured"
        else "Thresholds of the takeover gate for one pair of models, read off a published table.",
        "",
        f"    {_command(calibration, call)}",
        "",
        "## Pair",
        "",
        "| | |",
        "|---|---|",
        f"|base|`{calibration.base.id}`, revision {_quote(calibration.base.revision)}|",
        f"|guide|`{calibration.guide.id}`, revision {_quote(calibration.guide.revision)}|",
        f"|direction|{calibration.direction}: the {host} writes by default|",
        f"|shared vocabulary|{calibration.vocabulary['size']:,} tokens, {_quote(calibration.vocabulary['digest'])}|"
        if calibration.vocabulary
        else "|shared vocabulary|digest not known|",
        "",
    ]
    lines += _measured_sections(calibration) if calibration.source == "measured" else _published_sections(calibration)
    if calibration.notes:
        lines += ["## Notes", "", calibration.notes, ""]
    return "\n".join(lines)


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "a benchmark that was at hand"


def _quote(text: str | None) -> str:
    return f"`{text[:23]}`" if text else "not known"


def _command(calibration: Calibration, call: Call | None) -> str:
    """The command that uses it: a run that it fits, or a comparison where it may not be run with."""
    if calibration.diagnostic:
        return f"lm-eval-takeover calibrate --compare {shlex.quote(_file_of(calibration, call))}"
    task = calibration.prompts.get("task") or (
        "takeover_demo" if calibration.base.id == "demo-base" else "takeover_math"
    )
    words = [
        "lm_eval",
        "--model",
        "guided-takeover",
        "--model_args",
        _model_arguments(calibration, call),
        "--tasks",
        task,
    ]
    if call and call.include_path:
        words += ["--include_path", call.include_path]
    if calibration.prompts.get("chat_template"):
        words.append("--apply_chat_template")
    if calibration.source == "measured" and (settings := _generation_settings(calibration, task)):
        words += ["--gen_kwargs", settings]
    return shlex.join(words)


def _generation_settings(calibration: Calibration, task: str) -> str:
    """The decoding settings that a run has to be given; none where our tasks have them."""
    decoding = {
        name: calibration.decoding[name] for name in ("temperature", "top_p", "top_k") if name in calibration.decoding
    }
    if task.startswith("takeover_") and Sampling(**decoding) == TASK_SAMPLING:
        return ""
    sampled = {"do_sample": decoding.get("temperature") != 0}
    return ",".join(f"{name}={value}" for name, value in (sampled | decoding).items())


def _file_of(calibration: Calibration, call: Call | None) -> str:
    if call is not None:
        return call.path
    return calibration.name if calibration.name in packaged_calibrations() else f"{calibration.name}.json"


def _model_arguments(calibration: Calibration, call: Call | None) -> str:
    """The model arguments that use it."""
    arguments: dict[str, str] = {}
    if calibration.base.id != "demo-base" or (call and call.base):
        models = {"base": calibration.base.id, "guide": calibration.guide.id}
        arguments = {role: (getattr(call, role) if call else None) or name for role, name in models.items()}
    if calibration.source == "published":
        arguments["calibration"] = f"{calibration.name}:1"
        return ",".join(f"{name}={value}" for name, value in arguments.items())
    arguments["calibration"] = _file_of(calibration, call)
    if calibration.direction != "forward":
        arguments["direction"] = calibration.direction
    if (thinking := calibration.prompts.get("enable_thinking")) is not None:
        arguments["enable_thinking"] = str(thinking)
    if calibration.targets:
        arguments |= _target_arguments(calibration, call)
    else:
        arguments["spike_ratio"] = str(DEFAULT_RHO)
    return ",".join(f"{name}={value}" for name, value in arguments.items())


def _target_arguments(calibration: Calibration, call: Call | None) -> dict[str, str]:
    """The method of the first rate that was solved for, without what is the default."""
    target = calibration.targets[0]
    usual = {"policy": "disagreement", "score": target.method["policy"] if target.method["policy"] == "entropy" else "ce",
             "kappa_rule": KAPPA_RULES[0], "window": 10}  # fmt: skip
    arguments = {name: str(value) for name, value in target.method.items() if usual.get(name) != value}
    if calibration.plugin(target.method.get("score", "")) and call and call.plugins:
        arguments["plugins"] = call.plugins
    return {"target_rate": f"{target.target_rate:g}", **arguments}


def describe_rollouts(calibration: Calibration) -> str:
    """How many rollouts and tokens there were, beside how many prompts were asked for, and the share that was cut."""
    rollouts, asked = calibration.rollouts or 0, calibration.prompts.get("asked")
    fewer = f" ({asked} prompts were asked for)" if asked and asked != rollouts else ""
    cut = (
        f"; {calibration.cut} of them ({calibration.cut / rollouts:.1%}) were cut at their limit"
        if calibration.cut
        else ""
    )
    return f"{rollouts} rollouts{fewer}, {calibration.tokens or 0:,} tokens{cut}"


def _describe_fit(calibration: Calibration) -> list[str]:
    """For which runs it is, as the comparison with a run sees them."""
    prompts, decoding = calibration.prompts, calibration.decoding
    form = {
        True: "in the chat template of the guide",
        False: "without a chat template",
        None: "in a form that is not known",
    }
    text = f"Runs whose prompts are {form[prompts.get('chat_template')]}"
    if prompts.get("chat_template"):
        thinking = prompts.get("enable_thinking")
        text += " in its own thinking mode" if thinking is None else f" with enable_thinking={thinking}"
        text += "" if "enable_thinking" in prompts else " (as far as is known)"
    settings = ", ".join(
        f"{word} {'not known' if decoding.get(name) is None else f'{decoding[name]:g}'}"
        for name, word in (("temperature", "temperature"), ("top_p", "top-p"), ("top_k", "top-k"))
    )
    dtypes = ", ".join(f"{role} in {dtype}" for role, dtype in calibration.dtypes.items()) or "dtypes not known"
    lines = [
        f"{text}, and whose decoding is {settings}. Another form or decoding is an error that names both sides; other dtypes "
        f"than {dtypes} are a notice.",
    ]
    if prompts.get("task"):
        lines[0] += f" The prompts are in the template of `{prompts['task']}`."
    if calibration.diagnostic:
        lines += [
            "",
            f"**A diagnostic one**: it was measured on problems of {_list_names(calibration.diagnostic)}, and runs on these are "
            f"refused.",
        ]
    return ["## For which runs", "", *lines, ""]


def _measured_sections(calibration: Calibration) -> list[str]:
    prompts, decoding = calibration.prompts, calibration.decoding
    split = f", split {prompts['split']}" if prompts.get("split") else ""
    checked = [name for name in prompts.get("checked_against", []) if name not in calibration.diagnostic]
    lines = [
        *_describe_fit(calibration),
        "## Data",
        "",
        f"{describe_rollouts(calibration)}: one rollout of the host for each prompt of `{prompts['dataset']}`{split} that was "
        f"drawn with seed {prompts['seed']}. Licence of the prompts: {prompts.get('license') or 'not stated'}. None of them is a "
        f"problem of {_list_names(checked)}. The file holds their row numbers and a digest of their text, not the text.",
        "",
        f"Rollouts: temperature {decoding['temperature']}, top-p {decoding['top_p']}, at most {decoding['max_gen_toks']:,} new "
        f"tokens, seed {decoding['seed']}.",
        "",
        "## Rates",
        "",
        "`spike ratio` is the share of these tokens above `tau`. `takeovers` is the share at which the whole gate fires on these "
        f"rollouts, the test against the last {calibration.window} scores included. A guided run realizes another rate, since "
        "each takeover changes what follows; it is reported with every run.",
        "",
        rate_table(calibration),
        "",
    ]
    if calibration.targets:
        lines += [
            "Rates that were solved for on held-out prompts, for `target_rate=…`:",
            "",
            target_table(calibration),
            "",
        ]
    worst = max((held.rank_error for held in calibration.scores.values()), default=0.0)
    quantiles = "exact" if worst == 0 else f"within {worst:.4%} of the rank asked for"
    lines += [
        "## Limits",
        "",
        f"- Quantiles at the spike ratios of the table are {quantiles}; between two grid points they are interpolated.",
        "- For these two models, this direction and prompts of this kind; loading it for another pair is an error.",
    ]
    if calibration.sparse_below is not None:
        lines.append(f"- Below a spike ratio of {calibration.sparse_below:.2g} fewer than 30 tokens lie above tau.")
    zero = [name for name, held in calibration.scores.items() if held.mean == 0]
    if zero:
        lines.append(f"- All scores of {', '.join(zero)} are 0: these gates fire on every score above 0.")
    lines.append("")
    return lines


def _published_sections(calibration: Calibration) -> list[str]:
    return [
        "## Rates",
        "",
        _column_tables(calibration),
        "",
        "Column 1 is the strictest; `calibration=NAME:2` chooses the second. Which spike ratios they stand for is not known: a "
        "calibration of one's own (`lm-eval-takeover calibrate`) comes first.",
        "",
        "## Limits",
        "",
        "- Scores, prompts and decoding settings behind it are not at hand; `kappa` is by threshold_to_mean "
        "(`kappa / tau` is one number in each row).",
        "- It holds no other score, and no spike ratio can be read off it.",
        "",
    ]

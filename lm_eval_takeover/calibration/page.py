"""The page beside a calibration file: what it was measured on, what it gives, and how far to trust it."""

from collections.abc import Sequence

from lm_eval_takeover.calibration.files import packaged_calibrations
from lm_eval_takeover.calibration.thresholds import DEFAULT_RHO, KAPPA_RULES, Calibration
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.scores import SCORES


def rate_table(calibration: Calibration, scores: Sequence[str] = SCORES) -> str:
    """tau, both kappas and the replayed shares of takeovers by score and rho, as Markdown."""
    lines = [
        "|score|mean (nats)|spike ratio|tau (nats)|kappa threshold_to_mean|takeovers|kappa tail_to_mean|takeovers|",
        "|-----|----------:|----------:|---------:|----------------------:|--------:|-----------------:|--------:|",
    ]
    for score in (name for name in scores if name in calibration.scores):
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
        "|target rate|score|kappa rule|window|spike ratio|realized on held-out prompts|prompts|tokens|",
        "|----------:|-----|----------|-----:|----------:|---------------------------:|------:|-----:|",
    ]
    lines += [
        f"|{t.target_rate:.1%}|{t.score}|{t.kappa_rule}|{t.window}|{t.spike_ratio:.4%}|{t.realized_rate:.2%}|{t.prompts}|{t.tokens:,}|"
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


def render_page(calibration: Calibration) -> str:
    """The whole page as Markdown."""
    host = Policy(direction=calibration.direction).host
    lines = [
        f"# Calibration `{calibration.name}`",
        "",
        "Thresholds of the takeover gate for one pair of models, made by `lm-eval-takeover calibrate`."
        if calibration.source == "measured"
        else "Thresholds of the takeover gate for one pair of models, read off a published table.",
        "",
        f"    lm_eval --model guided-takeover --model_args {_model_arguments(calibration)} --tasks "
        f"{'takeover_demo' if calibration.base.id == 'demo-base' else 'takeover_math'}",
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


def _model_arguments(calibration: Calibration) -> str:
    """The model arguments that use it."""
    arguments: dict[str, str] = {}
    if calibration.base.id != "demo-base":
        arguments = {"base": calibration.base.id, "guide": calibration.guide.id}
    if calibration.source == "published":
        arguments["calibration"] = f"{calibration.name}:1"
        return ",".join(f"{name}={value}" for name, value in arguments.items())
    is_packaged = calibration.name in packaged_calibrations()
    arguments["calibration"] = calibration.name if is_packaged else f"{calibration.name}.json"
    if calibration.direction != "forward":
        arguments["direction"] = calibration.direction
    if calibration.targets:
        target = calibration.targets[0]
        arguments["target_rate"] = f"{target.target_rate:g}"
        if target.score == "entropy":
            arguments["policy"] = "entropy"
        elif target.score != "ce":
            arguments["score"] = target.score
        if target.kappa_rule != KAPPA_RULES[0]:
            arguments["kappa_rule"] = target.kappa_rule
        if target.window != 10:
            arguments["window"] = str(target.window)
    else:
        arguments["spike_ratio"] = str(DEFAULT_RHO)
    return ",".join(f"{name}={value}" for name, value in arguments.items())


def _measured_sections(calibration: Calibration) -> list[str]:
    prompts, decoding = calibration.prompts, calibration.decoding
    tokens = calibration.tokens or 0
    split = f", split {prompts['split']}" if prompts.get("split") else ""
    lines = [
        "## Data",
        "",
        f"{calibration.rollouts} rollouts, {tokens:,} tokens: one rollout of the host for each of {calibration.rollouts} prompts "
        f"of `{prompts['dataset']}`{split}, drawn with seed {prompts['seed']}. Licence of the prompts: "
        f"{prompts.get('license') or 'not stated'}. None of them is a problem of "
        f"{_list_names(prompts.get('checked_against', []))}. The file "
        f"holds their row numbers and a digest of their text, not the text.",
        "",
        f"Decoding: temperature {decoding['temperature']}, top-p {decoding['top_p']}, at most {decoding['max_gen_toks']:,} new "
        f"tokens, seed {decoding['seed']}{'; in the chat template of the guide' if prompts.get('chat_template') else ''}.",
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
        lines.append(f"- All scores of {', '.join(zero)} are 0: these gates fire on whatever is not 0.")
    lines.append("")
    return lines


def _published_sections(calibration: Calibration) -> list[str]:
    return [
        "## Rates",
        "",
        _column_tables(calibration),
        "",
        "Column 1 is the strictest; `calibration=NAME:2` chooses the second.",
        "",
        "## Limits",
        "",
        "- Scores, prompts and decoding settings behind it are not at hand; `kappa` is by threshold_to_mean "
        "(`kappa / tau` is one number in each row).",
        "- It holds no other score, and no spike ratio can be read off it.",
        "",
    ]

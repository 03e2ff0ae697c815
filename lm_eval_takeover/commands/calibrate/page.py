"""What `calibrate` prints, and the page beside a calibration file."""

from collections.abc import Sequence
from typing import Any

from lm_eval_takeover.calibration.files import packaged_calibrations
from lm_eval_takeover.calibration.thresholds import KAPPA_RULES, LOWEST, Calibration, list_arguments
from lm_eval_takeover.commands._output import Table, write_markdown

_LONG = ("indices", "held_out_indices", "template_digest", "problems")  # of prompts; left to the file
_SPREAD = 0.6  # below, a pair differs in form: 0.86 of a pair of one form, measured in docs/real-model.md


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
        rates = f"{target.target_rate:.1%}", f"{target.value:.5g}", target.describe_rate()
        rows.append([target.name, target.budget_parameter, *rates, str(target.prompts), f"{target.tokens:,}"])
    return Table(columns, rows, names=2)


def describe_rollouts(calibration: Calibration) -> str:
    rollouts, prompts = calibration.rollouts or 0, calibration.prompts.get("asked")
    fewer = f" ({prompts} prompts were asked for)" if prompts and prompts != rollouts else ""
    cut = calibration.cut or 0
    share = f"; {cut} of them ({cut / rollouts:.1%}) were cut at their limit" if cut else ""
    return f"{rollouts} rollouts{fewer}, {calibration.tokens or 0:,} tokens{share}"


def list_limits(calibration: Calibration) -> list[str]:
    lines = []
    if calibration.diagnostic:
        lines.append(f"Measured on problems of {', '.join(calibration.diagnostic)}; runs on these refuse it.")
    if calibration.tokens and (least := 30 / calibration.tokens) > LOWEST:
        lines.append(f"few tokens: below a spike ratio of {least:.2g}, fewer than 30 of them lie above tau")
    if (held := peak_share(calibration)) < _SPREAD:
        lines.append(
            f"ce is spread over the text: the tenth of the tokens with the highest ce holds {held:.0%} of it. Base and guide may "
            f"write different forms, and then few takeovers help little (docs/real-model.md)"
        )
    return lines


def peak_share(calibration: Calibration) -> float:
    """The share of all ce at the tenth of the tokens where it is highest: 1.00 of the demo pair; 1 where there is no ce."""
    held = calibration.scores.get("ce")
    return 0.1 * held.threshold(0.1).kappa_tail_to_mean if held is not None and held.mean else 1.0


def describe_pair(calibration: Calibration) -> str:
    parts = [f"the tenth of the tokens with the highest ce holds {peak_share(calibration):.0%} of it"]
    if (differ := calibration.scores.get("top1")) is not None:
        parts.append(f"base and guide have the same first choice at {1 - differ.mean:.1%} of the tokens")
    return "; ".join(parts)


def render_page(calibration: Calibration, path: str | None = None, scores: Sequence[str] | None = None) -> str:
    """The page of a measured calibration as Markdown; `path` is that of the file, `scores` those that were asked for."""
    file = path or (calibration.name if calibration.name in packaged_calibrations() else f"{calibration.name}.json")
    rate = ""
    if calibration.targets:  # the first rate that was solved for, and its method, as model arguments
        target = calibration.targets[0]
        arguments = {"target_rate": f"{target.target_rate:g}", **list_arguments(target.method)}
        rate = " with " + ", ".join(f"`{name}={value}`" for name, value in arguments.items())
    parts = [
        f"# Calibration `{calibration.name}`",
        "Thresholds of the takeover gate for one pair of models, made by `lm-eval-takeover calibrate`.",
        f"Use it as the model argument `calibration={file}`{rate}.",
        write_markdown(Table(["", ""], _list_facts(calibration), list_limits(calibration), names=2)),
        "## Rates",
        f"`spike ratio` is the share of these tokens above `tau`. `takeovers` is the share at which the gate fires on these "
        f"rollouts, with its test against the last {calibration.window} scores. `tail` is `kappa_rule=tail_to_mean`. A run "
        f"realizes another rate: each takeover changes what follows.",
        write_markdown(rate_table(calibration, scores)),
    ]
    if calibration.targets:
        parts += ["Rates solved for on held-out prompts (`target_rate=…`):", write_markdown(target_table(calibration))]
    if calibration.notes:
        parts += ["## Notes", calibration.notes]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _list_facts(calibration: Calibration) -> list[list[str]]:
    facts: dict[str, Any] = {"base": calibration.base, "guide": calibration.guide, "direction": calibration.direction}
    for group in ("vocabulary", "prompts", "decoding", "dtypes"):
        facts |= {f"{group} {name}": value for name, value in getattr(calibration, group).items() if name not in _LONG}
    facts["rollouts"] = describe_rollouts(calibration)
    shown = {name: ", ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
    return [[name, str(value)] for name, value in shown.items() if value not in (None, "")]

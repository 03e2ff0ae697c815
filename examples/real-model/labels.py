"""Where do takeovers help: at decisions, at results or at form? `python labels.py RUN_DIR EFFECTS [RUN_DIR EFFECTS …]`.

EFFECTS is the folder of `lm-eval-takeover effects RUN_DIR --out EFFECTS`.

The template of the problems (`problems.py`) says what stands at each position of an answer:

decision  an operand or operator of an equation, or the first word of a sentence, which begins a step of the plan
result    a digit behind an equals sign, or of the answer in the box
form      all else
"""

import argparse
import re
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from lm_eval_takeover.lab.extra import draw_svg
from lm_eval_takeover.lab.measures.effects import nested_mean
from lm_eval_takeover.runs.run_reader import read_run_folder

_RESULT = re.compile(r"(?:=\s*|boxed\{)-?\d*$")
_SENTENCE = re.compile(r"(?:^|[.!?]\s*|\n\s*)$")
LABELS = ("decision", "result", "form")


def label_token(before: str, *tokens: str) -> str:
    """What stands behind this text of an answer, where one of these tokens may stand."""
    written = "".join(tokens)
    numbers = any(map(str.isdigit, written))
    if _RESULT.search(before) and numbers:
        return "result"
    if numbers or re.search(r"[-+*=]", written) or (_SENTENCE.search(before) and any(map(str.isalpha, written))):
        return "decision"
    return "form"


def label_effects(run_dir: Path, effects: Path) -> pl.DataFrame:
    """The positions of `effects.csv` with their labels."""
    run = read_run_folder(run_dir)
    tokenizer = run.load_tokenizer()
    texts = {one.name: found["token_id"].tolist() for one, found in run.read_traces(["token_id"])}
    rows = pl.read_csv(effects / "effects.csv")
    labels = []
    for row in rows.iter_rows(named=True):
        tokens = texts[row["task"], row["doc_id"], row["sample"]][: row["position"]]
        drawn = (tokenizer.decode([row[f"{role}_token_id"]]) for role in ("host", "donor"))
        labels.append(label_token(tokenizer.decode(tokens), *drawn))
    return rows.with_columns(label=pl.Series(labels))


def estimate_effects(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Of takeovers and controls, for each label: how many were tried, their shares (%), the effect and its interval (points)."""
    found = []
    for (kind,), of_kind in rows.with_columns(weight=1 / pl.col("inclusion")).group_by(["kind"], maintain_order=True):
        total, gain = of_kind["weight"].sum(), (of_kind["weight"] * of_kind["effect"]).sum()
        for label in LABELS:
            part = of_kind.filter(pl.col("label") == label)
            if part.is_empty():
                continue
            weights, values = part["weight"].to_numpy(), part["effect"].to_numpy()
            mean = nested_mean(values, part["doc_id"].to_numpy(), weights)
            effect, low, high = (100 * value for value in (mean.value, mean.low, mean.high))
            shares = {"of_positions": 100 * weights.sum() / total, "of_gain": 100 * (weights * values).sum() / gain}
            found.append(
                {"kind": kind, "label": label, "tried": len(part), "effect": effect, "low": low, "high": high} | shares
            )
    return found


def draw_effects(figure: Any, found: dict[str, list[dict[str, Any]]]) -> None:
    """A panel for each row of `compare`: takeovers filled, controls open."""
    for axes, (name, estimates) in zip(
        figure.subplots(1, len(found), sharex=True, squeeze=False)[0], found.items(), strict=True
    ):
        for place, one in enumerate(reversed(estimates)):
            ends = [[one["effect"] - one["low"]], [one["high"] - one["effect"]]]
            filled = None if one["kind"] == "takeover" else "none"
            axes.errorbar(one["effect"], place, xerr=ends, fmt="o", color="C0", markerfacecolor=filled, capsize=3)
        axes.set_yticks(range(len(estimates)), [f"{one['kind']}: {one['label']}" for one in reversed(estimates)])
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set(title=name, xlabel="effect of the guide's token on Acc, points")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_DIR EFFECTS", help="one pair or more")
    parser.add_argument("--picture", type=Path, help="an SVG file")
    options = parser.parse_args()
    pairs = zip(options.folders[::2], options.folders[1::2], strict=True)
    found = {run_dir.parent.name: estimate_effects(label_effects(run_dir, effects)) for run_dir, effects in pairs}
    print("|row|position|label|tried|share of positions|effect, points|share of the gain|\n|---|---|---|--:|--:|--:|--:|")
    for name, estimates in found.items():
        for one in estimates:
            effect = f"{one['effect']:+.1f} ({one['low']:+.1f} to {one['high']:+.1f})"
            cells = (
                name,
                one["kind"],
                one["label"],
                one["tried"],
                f"{one['of_positions']:.0f} %",
                effect,
                f"{one['of_gain']:.0f} %",
            )
            print(f"|{'|'.join(map(str, cells))}|")
    if options.picture:
        options.picture.write_text(draw_svg(partial(draw_effects, found=found), (4 * len(found), 2.4)))


if __name__ == "__main__":
    main()

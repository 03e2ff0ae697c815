"""Where do takeovers help: at decisions, at results or at form? `python labels.py RUN_DIR EFFECTS`.

EFFECTS is the folder of `lm-eval-takeover effects RUN_DIR --out EFFECTS`.

The template of the problems (`problems.py`) says what stands at each position of an answer:

decision  an operand or operator of an equation, or the first word of a sentence, which begins a step of the plan
result    a digit behind an equals sign, or of the answer in the box
form      all else
"""

import re
import sys
from pathlib import Path

import polars as pl

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


def main(run_dir: Path, effects: Path) -> None:
    rows = label_effects(run_dir, effects)
    print("|kind|label|tried|share of the population|effect, points|share of the sum of effects|\n|---|---|--:|--:|--:|--:|")
    for kind in ("takeover", "control"):
        of_kind = rows.filter(pl.col("kind") == kind).with_columns(weight=1 / pl.col("inclusion"))
        total, gain = of_kind["weight"].sum(), (of_kind["weight"] * of_kind["effect"]).sum()
        for label in LABELS:
            part = of_kind.filter(pl.col("label") == label)
            if part.is_empty():
                continue
            weights, values = part["weight"].to_numpy(), part["effect"].to_numpy()
            mean = nested_mean(values, part["doc_id"].to_numpy(), weights)
            interval = f"{100 * mean.value:+.1f} ({100 * mean.low:+.1f} to {100 * mean.high:+.1f})"
            shares = f"{weights.sum() / total:.0%}|{interval}|{(weights * values).sum() / gain:.0%}"
            print(f"|{kind}|{label}|{len(part)}|{shares}|")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

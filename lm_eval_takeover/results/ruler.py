"""How far the reading of answers can move the gap between two rows.

Right answers without a box are refused more often than those with one. `ruler.json` has how often, counted on labelled texts of
base models (`benchmarks/reading_answers.py --write`). A base seldom writes a box and its guide nearly always does, so the gap
between them is the one that reading can bend.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from scipy.special import betaincinv

APART = 0.10  # from this difference of `unboxed` on, a table says how far reading can move the gap


@cache
def read_refused() -> tuple[float, float]:
    """The most that the refused shares of right answers, with a box and without, can be: upper ends of exact 95 % intervals."""
    shares = json.loads(files("lm_eval_takeover.results").joinpath("ruler.json").read_text(encoding="utf-8"))
    counts = [(shares[name]["refused"], shares[name]["right"]) for name in ("boxed", "unboxed")]
    with_box, without = (float(betaincinv(refused + 1, right - refused, 0.975)) for refused, right in counts)
    return with_box, without


def bound_refused(means: Mapping[str, float]) -> float:
    """The share of a row's samples that may be right and refused, from its means."""
    (with_box, without), boxed = read_refused(), means["acc_boxed"]
    return boxed * with_box / (1 - with_box) + (means["acc"] - boxed) * without / (1 - without)


def describe_bend(rows: Mapping[str, Mapping[str, float]]) -> str | None:
    """One line on the two rows whose means of `unboxed` differ most; None where no two differ by more than 10 points."""
    known = {name: means for name, means in rows.items() if {"acc", "acc_boxed", "unboxed"} <= means.keys()}
    most, least = (choose(known, key=lambda name: known[name]["unboxed"], default="") for choose in (max, min))
    if not known or known[most]["unboxed"] - known[least]["unboxed"] <= APART:
        return None
    move = max(bound_refused(known[name]) for name in (most, least))
    shares = f"{known[most]['unboxed']:.0%} of the samples of {most} are read without a box, and {known[least]['unboxed']:.0%}"
    return (
        f"{shares} of {least}. Without a box more right answers are refused, which can move the gap between the two by up to "
        f"{100 * move:.1f} points (--columns reading)"
    )


def measure_boxed(means: Mapping[str, float]) -> float | None:
    """Acc of the samples that have a box, from a row's means; None where none has, or the row does not say."""
    if not {"acc_boxed", "unboxed", "no_answer"} <= means.keys():
        return None
    having = 1 - means["unboxed"] - means["no_answer"]
    return means["acc_boxed"] / having if having > 1e-9 else None

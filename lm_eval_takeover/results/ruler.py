"""How far the reading of answers can move the gap between two rows.

Right answers without a box are refused more often than those with one. `ruler.json` has how often, counted on labelled texts of
base models (`benchmarks/reading_answers.py --write`). A base seldom writes a box and its guide nearly always does, so the gap
between them is the one that reading can bend.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from scipy import stats

APART = 0.10  # from this difference of `unboxed` on, a table says how far reading can move the gap

Means = Mapping[str, float]  # of one row: `acc`, `acc_boxed`, `unboxed`, `no_answer`


@cache
def read_refused() -> tuple[float, float]:
    """The most that the refused shares of right answers, with a box and without, can be: upper ends of exact 95 % intervals."""
    shares = json.loads(files("lm_eval_takeover.results").joinpath("ruler.json").read_text(encoding="utf-8"))
    counts = [(shares[name]["refused"], shares[name]["right"]) for name in ("boxed", "unboxed")]
    with_box, without = (float(stats.beta.ppf(0.975, refused + 1, right - refused)) for refused, right in counts)
    return with_box, without


def bound_refused(means: Means) -> float:
    """The share of a row's samples that may be right and refused."""
    boxed, unboxed = means["acc_boxed"], means["acc"] - means["acc_boxed"]
    with_box, without = read_refused()
    return boxed * with_box / (1 - with_box) + unboxed * without / (1 - without)


def describe_bend(rows: Mapping[str, Means]) -> str | None:
    """One line on the two rows that differ most in `unboxed`; None where no two differ by more than 10 points."""
    first, last = (choose(rows, key=lambda name: rows[name]["unboxed"], default=None) for choose in (max, min))
    if first is None or last is None or rows[first]["unboxed"] - rows[last]["unboxed"] <= APART:
        return None
    move = max(bound_refused(rows[first]), bound_refused(rows[last]))
    with_box, without = read_refused()
    return (
        f"{first} answers without a box in {rows[first]['unboxed']:.0%} of the samples, {last} in {rows[last]['unboxed']:.0%}: "
        f"reading can move the gap between rows by up to {100 * move:.1f} points (of right answers up to {without:.1%} are "
        f"refused without a box, {with_box:.1%} with one; --columns reading)"
    )


def measure_boxed(means: Means) -> float | None:
    """Acc of the samples that have a box; None where none has."""
    having = 1 - means["unboxed"] - means["no_answer"]
    return means["acc_boxed"] / having if having > 0 else None

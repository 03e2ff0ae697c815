"""avg@n, pass@k and maj@n over the samples of one problem; lm-eval averages over problems, so errors cluster by problem."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb

from lm_eval_takeover.answers.extraction import extract_answer, has_unclosed_think
from lm_eval_takeover.answers.normalisation import canonicalise
from lm_eval_takeover.answers.verification import Verdict
from lm_eval_takeover.errors import TakeoverError

SAMPLES = 8
KS = (1, 2, 4, 8)

JudgeAnswer = Callable[[str, str], Verdict]


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The unbiased estimator `1 - C(n - c, k) / C(n, k)` for `c` correct ones of `n` samples."""
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {correct} correct among {n} samples is not defined")
    return 1.0 - comb(n - correct, k) / comb(n, k)


def majority(answers: Sequence[str | None], judge: JudgeAnswer) -> str | None:
    """The answer that most samples give under mathematical equivalence; None if no sample gives one.

    Answers with one canonical form are one class, and a form joins the first class whose first form verifies it and is verified
    by it. Forms are visited in sorted order, so the order of samples decides nothing but ties, which go to the class seen first.
    The class answers with the first of its texts in sorted order.
    """
    forms: dict[str, list[int]] = {}
    for index, answer in enumerate(answers):
        if answer is not None:
            forms.setdefault(canonicalise(answer), []).append(index)
    classes: dict[str, list[int]] = {}
    for form in sorted(forms):
        for first in classes:
            if judge(first, form).correct and judge(form, first).correct:
                classes[first] += forms[form]
                break
        else:
            classes[form] = list(forms[form])
    if not classes:
        return None
    largest = min(classes, key=lambda form: (-len(classes[form]), min(classes[form])))
    return min(answer for index in forms[largest] if (answer := answers[index]) is not None)


@dataclass(frozen=True)
class Scored:
    """What the samples of one problem came to: one answer and outcome per sample, and the metrics.

    An outcome is `correct`, `incorrect`, `no_answer` (nothing to extract), `unparsed` or `timed_out`; all but the first count as
    incorrect.
    """

    answers: list[str | None]
    outcomes: list[str]
    majority: str | None
    metrics: dict[str, float]


def score_samples(
    gold: str,
    responses: Sequence[str],
    name: str,
    judge: JudgeAnswer,
    extract: Callable[[str], str | None] = extract_answer,
) -> Scored:
    """The metrics of one problem. Raises TakeoverError that names it unless it has exactly 8 samples."""
    if len(responses) != SAMPLES:
        raise TakeoverError(
            f"{name} has {len(responses)} samples, expected {SAMPLES}; pass@k of another number would not be "
            f"comparable, so no score is given"
        )
    answers = [extract(response) for response in responses]
    outcomes = ["no_answer" if answer is None else _name_outcome(judge(gold, answer)) for answer in answers]
    correct = outcomes.count("correct")
    chosen = majority(answers, judge)
    metrics = {
        "acc": correct / SAMPLES,
        **{f"pass@{k}": pass_at_k(SAMPLES, correct, k) for k in KS},
        f"maj@{SAMPLES}": float(chosen is not None and judge(gold, chosen).correct),
        **{reason: outcomes.count(reason) / SAMPLES for reason in ("no_answer", "unparsed", "timed_out")},
        "unclosed_think": sum(map(has_unclosed_think, responses)) / SAMPLES,
    }
    return Scored(answers, outcomes, chosen, metrics)


def _name_outcome(verdict: Verdict) -> str:
    return "correct" if verdict.correct else verdict.reason or "incorrect"

"""avg@n, pass@k and maj@n over the samples of one problem; lm-eval averages over problems, so errors cluster by problem."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval_takeover.answers.extraction import Reading, has_unclosed_think, read_answer
from lm_eval_takeover.answers.normalisation import canonicalise
from lm_eval_takeover.answers.verification import Verdict
from lm_eval_takeover.tasks.responses import is_known_truncated, is_truncated

JudgeAnswer = Callable[[str, str], Verdict]
ReadResponse = Callable[[str, bool], Reading]  # of a response and whether its token limit is known to have ended it


def list_ks(samples: int) -> list[int]:
    """The `k` of pass@k for so many samples a problem: 1, 2, 4, … as far as they go, and all of them."""
    return sorted({*(2**power for power in range(samples.bit_length())), samples})


def accuracy_of_completed(counts: Iterable[tuple[int, int]]) -> float:
    """The share of correct samples among those that were not cut off, over `(correct, completed)` of all problems.

    A problem of which no sample was completed counts for nothing; NaN where none was at all.
    """
    correct, completed = map(sum, zip(*counts, strict=True))
    return correct / completed if completed else math.nan


def list_metrics(samples: int) -> list[dict[str, Any]]:
    """lm-eval's `metric_list` for so many samples a problem, in the order of `score_samples`."""
    better = ["acc", "acc_boxed", "acc_completed", *(f"pass@{k}" for k in list_ks(samples)), f"maj@{samples}"]
    worse = ["unboxed", "truncated", "no_answer", "unparsed", "timed_out", "unclosed_think"]
    aggregation = {"acc_completed": accuracy_of_completed}
    return [
        {"metric": name, "aggregation": aggregation.get(name, "mean"), "higher_is_better": name in better}
        for name in [*better, *worse]
    ]


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The unbiased estimator `1 - C(n - c, k) / C(n, k)` for `c` correct ones of `n` samples."""
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {correct} correct among {n} samples is not defined")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


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
    metrics: dict[str, float | tuple[int, int]]


def score_samples(
    gold: str,
    responses: Sequence[str],
    judge: JudgeAnswer,
    read: ReadResponse = read_answer,
) -> Scored:
    """The metrics of one problem, all of them shares of its samples but `acc_completed`, which is `(correct, completed)`."""
    count = len(responses)
    readings = [read(response, is_known_truncated(response)) for response in responses]
    answers = [reading.answer for reading in readings]
    outcomes = ["no_answer" if answer is None else _name_outcome(judge(gold, answer)) for answer in answers]
    completed = [outcome for outcome, response in zip(outcomes, responses, strict=True) if not is_truncated(response)]
    correct = outcomes.count("correct")
    chosen = majority(answers, judge)
    metrics: dict[str, float | tuple[int, int]] = {
        "acc": correct / count,
        "acc_boxed": sum(
            reading.boxed and outcome == "correct" for reading, outcome in zip(readings, outcomes, strict=True)
        )
        / count,
        "acc_completed": (completed.count("correct"), len(completed)),
        **{f"pass@{k}": pass_at_k(count, correct, k) for k in list_ks(count)},
        f"maj@{count}": float(chosen is not None and judge(gold, chosen).correct),
        "unboxed": sum(reading.answer is not None and not reading.boxed for reading in readings) / count,
        "truncated": 1 - len(completed) / count,
        **{reason: outcomes.count(reason) / count for reason in ("no_answer", "unparsed", "timed_out")},
        "unclosed_think": sum(map(has_unclosed_think, responses)) / count,
    }
    return Scored(answers, outcomes, chosen, metrics)


def _name_outcome(verdict: Verdict) -> str:
    return "correct" if verdict.correct else verdict.reason or "incorrect"

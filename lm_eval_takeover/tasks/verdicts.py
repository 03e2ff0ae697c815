"""The metrics of a problem (avg@n, pass@k, maj@n) from the verdicts on its samples, and the digest of what judges.

lm-eval averages over problems, so errors cluster by problem. A light import, for task files.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from unicodedata import unidata_version

from lm_eval_takeover.answers.samples import AnswerKind, JudgedProblem, JudgedSample, Question, Verifier, judge_samples
from lm_eval_takeover.samples import Response, list_ks, pass_at_k
from lm_eval_takeover.storage.digests import digest_of

Metrics = dict[str, float | tuple[int, int]]  # of one problem; `acc_completed` is `(correct, completed)`


@cache
def identify_scorer(verifier: Verifier) -> str:
    """The digest of all that judges: the verifier's name, the code of `answers` and `tasks`, and what that code stands on."""
    tasks = Path(__file__).parent
    files = sorted(file for folder in (tasks, tasks.with_name("answers")) for file in folder.glob("*.py"))
    sources = [[file.name, file.read_text(encoding="utf-8")] for file in files]
    versions = [metadata.version(name) for name in ("math-verify", "sympy", "regex")]
    return digest_of([verifier, versions, unidata_version, sources])


def accuracy_of_completed(counts: Iterable[tuple[int, int]]) -> float:
    """Correct samples over completed ones, of `(correct, completed)` by problem; NaN where none was completed."""
    correct, completed = map(sum, zip(*counts, strict=True))
    return correct / completed if completed else math.nan


def list_metrics(samples: int) -> list[dict[str, Any]]:
    """lm-eval's `metric_list` for this number of samples, in the order of `score_samples`."""
    better = ["acc", "acc_boxed", "acc_completed", *(f"pass@{k}" for k in list_ks(samples)), f"maj@{samples}"]
    worse = ["unboxed", "truncated", "no_answer", "restated", "unparsed", "timed_out", "unclosed_think"]
    other = {"acc_completed": accuracy_of_completed}
    entries = ((name, other.get(name, "mean"), name in better) for name in (*better, *worse))
    return [dict(zip(("metric", "aggregation", "higher_is_better"), entry, strict=True)) for entry in entries]


def score_samples(
    gold: str,
    responses: Sequence[str],
    judge: Callable[[Question], JudgedProblem] = judge_samples,
    kind: AnswerKind = "math",
    tolerance: float = 0.0,
    verifier: Verifier = "takeover",
    problem: str = "",
    think_end: str = "",
) -> tuple[list[JudgedSample], Metrics]:
    """The samples of one problem and its metrics. `think_end` ends the thinking of the model, beside the usual tags."""
    count = len(responses)
    limits = [response.truncated if isinstance(response, Response) else None for response in responses]  # by their model
    if think_end:
        responses = [response.replace(think_end, "</think>") for response in responses]
    samples, chosen = judge(Question(gold, responses, list(map(bool, limits)), kind, tolerance, verifier, problem))
    outcomes = [sample.outcome for sample in samples]
    cuts = (sample.unclosed if cut is None else cut for sample, cut in zip(samples, limits, strict=True))
    completed = [outcome for outcome, cut in zip(outcomes, cuts, strict=True) if not cut]
    correct = outcomes.count("correct")
    return samples, {
        "acc": correct / count,
        "acc_boxed": sum(sample.boxed and sample.outcome == "correct" for sample in samples) / count,
        "acc_completed": (completed.count("correct"), len(completed)),
        **{f"pass@{k}": pass_at_k(count, correct, k) for k in list_ks(count)},
        f"maj@{count}": float(chosen is not None and outcomes[chosen] == "correct"),
        "unboxed": sum(sample.answer is not None and not sample.boxed for sample in samples) / count,
        "truncated": 1 - len(completed) / count,
        **{reason: outcomes.count(reason) / count for reason in ("no_answer", "restated", "unparsed", "timed_out")},
        "unclosed_think": sum(sample.unclosed for sample in samples) / count,
    }

"""avg@n, pass@k and maj@n over the samples of one problem; lm-eval averages over problems, so errors cluster by problem."""

from collections.abc import Callable, Sequence
from math import comb

from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.verification import canonical, extract_answer, verify

SAMPLES = 8
KS = (1, 2, 4, 8)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The unbiased estimator `1 - C(n - c, k) / C(n, k)` for `c` correct ones of `n` samples."""
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {correct} correct among {n} samples is not defined")
    return 1.0 - comb(n - correct, k) / comb(n, k)


def majority(answers: Sequence[str | None]) -> str | None:
    """The most frequent answer; ties go to the one seen first, and samples without an answer do not vote."""
    votes: dict[str, list[str]] = {}
    for answer in answers:
        if answer is not None:
            votes.setdefault(canonical(answer), []).append(answer)
    return max(votes.values(), key=len)[0] if votes else None


def score_samples(
    gold: str, responses: Sequence[str], name: str, is_correct: Callable[[str, str], bool] = verify
) -> dict[str, float]:
    """The metrics of one problem. Raises TakeoverError that names it unless it has exactly 8 samples."""
    if len(responses) != SAMPLES:
        raise TakeoverError(
            f"{name} has {len(responses)} samples, expected {SAMPLES}; pass@k of another number would not be "
            f"comparable, so no score is given"
        )
    answers = [extract_answer(response) for response in responses]
    verdicts = {answer: is_correct(gold, answer) for answer in set(answers) if answer is not None}
    correct = sum(answer is not None and verdicts[answer] for answer in answers)
    chosen = majority(answers)
    return {
        "acc": correct / SAMPLES,
        **{f"pass@{k}": pass_at_k(SAMPLES, correct, k) for k in KS},
        f"maj@{SAMPLES}": float(chosen is not None and verdicts[chosen]),
    }

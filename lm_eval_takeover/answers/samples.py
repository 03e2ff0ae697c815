"""The samples of one problem: the answer and the outcome of each, and the most frequent answer.

What touches a response is a step: `judging` runs it in a worker under limits, `run_here` right here.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

from lm_eval_takeover.answers.letters import read_letter
from lm_eval_takeover.answers.normalisation import canonicalise
from lm_eval_takeover.answers.reading import read_answer
from lm_eval_takeover.answers.text_verdicts import restates

_log = logging.getLogger(__name__)

AnswerKind = Literal["math", "letters", "answer"]  # `answer`: a response is nothing but its answer
Verifier = Literal["takeover", "math_verify"]  # ours, and that library alone


class Question(NamedTuple):
    """A gold answer, the responses, and of each whether the token limit is known to have ended it."""

    gold: str
    responses: Sequence[str]
    truncated: Sequence[bool]
    kind: AnswerKind = "math"
    tolerance: float = 0.0
    verifier: Verifier = "takeover"  # letters are read and compared alike by both
    problem: str = ""  # its own expressions are no answers


class JudgedSample(NamedTuple):
    """One response. `outcome`: `correct`, `incorrect`, `no_answer`, `restated` (the problem), `unparsed` or `timed_out`."""

    answer: str | None
    outcome: str
    boxed: bool = False
    unclosed: bool = False  # a `<think>` that never ends


class JudgedProblem(NamedTuple):
    """The samples of a problem, and the index of one with the most frequent answer; None if no sample has an answer."""

    samples: list[JudgedSample]
    majority: int | None


class JudgeStep(NamedTuple):
    """A call that touches a response: a module of this folder (`verification` loads sympy), its function, and the arguments."""

    module: str
    name: str
    arguments: tuple[Any, ...]


# The result of a step, a JSON value; why it has none; and the name of what was raised.
Ran = tuple[Any, Literal["unparsed", "timed_out"] | None, str | None]


def run_here(step: JudgeStep) -> Ran:
    """Run a step in this process. An error is the outcome of that response alone."""
    module = import_module(f"{__package__}.{step.module}")
    try:
        return getattr(module, step.name)(*step.arguments), None, None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # math_verify's time-out is no Exception in some versions
        return None, "unparsed", type(error).__name__


def judge_samples(question: Question, run: Callable[[JudgeStep], Ran] = run_here) -> JudgedProblem:
    """Read and judge all samples of a problem, an answer that several give once."""
    stock = question.verifier == "math_verify" and question.kind == "math"

    def ask(module: str, name: str, *arguments: Any) -> tuple[Any, Any]:
        value, reason, raised = run(JudgeStep(module, name, arguments))
        if raised:
            _log.warning("%s while a response was judged; it counts as unparsed", raised)
        return value, reason

    @cache
    def judge(gold: str, answer: str) -> str:
        if question.kind == "letters":
            return "correct" if gold.strip() == answer.strip() else "incorrect"
        if stock:
            outcome, reason = ask("verification", "verify_stock", gold, answer)
        else:
            outcome, reason = ask("text_verdicts", "verdict_by_text", gold, answer, question.tolerance)
            if not (outcome or reason):  # mathematics is loaded only where text does not decide
                outcome, reason = ask("verification", "verify", gold, answer, question.tolerance)
        return str(reason or outcome)

    samples: list[JudgedSample] = []
    forms: list[str | None] = []
    for response, truncated in zip(question.responses, question.truncated, strict=True):
        value, reason = ask("samples", "read", response, truncated, question.kind, question.gold, question.problem)
        answer, form, boxed, unclosed = value or (None, None, False, False)
        if stock and not reason:
            answer, reason = ask("verification", "read_stock", response)
            form = answer and f"${answer}$"
        if reason or answer is None or (form is None and question.kind == "math"):
            outcome: str = reason or ("no_answer" if answer is None else "restated")
        else:
            outcome = judge(question.gold, response if stock else answer)
        samples.append(JudgedSample(answer, outcome, boxed, unclosed))
        forms.append(form)
    alone = {form for form, sample in zip(forms, samples, strict=True) if form is not None and sample.outcome == "timed_out"}
    votes = find_majority(forms, judge, alone)
    return JudgedProblem(samples, min(votes, key=lambda vote: (samples[vote].answer or "", vote), default=None))


def read(
    response: str, truncated: bool, kind: AnswerKind, gold: str, problem: str
) -> tuple[str | None, str | None, bool, bool]:
    """The answer, its form (None, and so no vote, if it restates the problem), whether it is boxed, and an endless `<think>`."""
    if kind == "answer":
        return response, None, False, False
    if kind == "letters":
        answer, boxed, unclosed = read_letter(response, truncated)
        return answer, answer, boxed, unclosed
    answer, boxed, unclosed = read_answer(response, truncated, problem)
    restated = answer is not None and restates(answer, gold, problem)
    return answer, None if answer is None or restated else canonicalise(answer), boxed, unclosed


def find_majority(forms: Sequence[str | None], judge: Callable[[str, str], str], alone: Collection[str] = ()) -> list[int]:
    """The samples of the most frequent answer under mathematical equivalence, by their canonical forms.

    A form joins the first class whose first form verifies it and is verified by it. Forms are visited in sorted order, so the
    order of samples decides only ties: the first class wins. A form that timed out, or is in `alone`, is compared with no
    other.
    """
    closed = set(alone)
    classes: dict[str, list[int]] = {}

    def is_same(first: str, form: str) -> bool:
        if first in closed or form in closed:
            return False
        forward = judge(first, form)
        back = judge(form, first) if forward == "correct" else forward
        if "timed_out" in (forward, back):
            closed.add(form)
        return back == "correct"

    for form in sorted(form for form in set(forms) if form is not None):
        first = next((first for first in classes if is_same(first, form)), form)
        classes.setdefault(first, []).extend(place for place, other in enumerate(forms) if other == form)
    return min(classes.values(), key=lambda members: (-len(members), min(members)), default=[])

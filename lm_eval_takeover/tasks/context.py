"""The context of a run: what a model was asked by lm-eval, and how its texts are judged. Each of its responses carries it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lm_eval_takeover.calibration.commands import NO_TASK, RunTask
from lm_eval_takeover.samples import Response, Verdict

if TYPE_CHECKING:  # these load torch, or all of `answers`
    from lm_eval.api.instance import Instance

    from lm_eval_takeover.answers.samples import Verifier


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """One call of lm-eval."""

    seed: int | None = None  # that it was given for torch, None where it is lm-eval's default
    template: str | None = None  # the name of a chat template
    selected: Mapping[str, Sequence[int]] = field(default_factory=dict)  # documents of `--samples` by task, in rising order
    task: RunTask = NO_TASK  # the first one
    pairs: dict[str, Any] | None = None  # those that the runs of one process share; None: each loads its own
    bars: Mapping[str, Any] = field(default_factory=dict)  # tqdm's options of progress bars

    def find_doc_id(self, instance: "Instance") -> int:
        """The number of an instance's document in its task; lm-eval's instances count those that were selected."""
        numbers, counted = self.selected.get(instance.task_name or ""), instance.doc_id or 0
        return numbers[counted] if numbers else counted

    def name_document(self, instance: "Instance") -> str:
        """The name of a document in errors."""
        return f"task {instance.task_name}, doc {self.find_doc_id(instance)}"


# lm-eval hands a model none of this; it asks for it at each call.
_current: ContextVar[Evaluation | None] = ContextVar("the evaluation that is going on", default=None)
get_evaluation = _current.get  # the call of lm-eval that is going on; None outside one


@contextmanager
def evaluating(evaluation: Evaluation) -> Iterator[None]:
    """Meanwhile `get_evaluation` returns this one."""
    before = _current.set(evaluation)
    try:
        yield
    finally:
        _current.reset(before)


@dataclass(frozen=True, slots=True, eq=False)
class RunContext:
    """How the texts of a model are judged in one evaluation."""

    evaluation: Evaluation = field(default_factory=Evaluation)
    verifier: "Verifier" = "takeover"
    think_end: str = ""  # ends the thinking of the model, beside the usual tags; empty: nothing else
    log: Callable[[Iterable[Verdict]], None] | None = None  # takes the verdicts


NO_RUN = RunContext()  # of texts by models of others


def find_context(responses: Iterable[str]) -> RunContext:
    """Of the model that wrote these texts, which are those of one evaluation."""
    carried = (response.context for response in responses if isinstance(response, Response))
    return next((context for context in carried if context is not None), NO_RUN)


class WithheldPrompt(str):
    """The prompt of a question that is written nowhere: no journal, file or log of ours has its text."""

    __slots__ = ()

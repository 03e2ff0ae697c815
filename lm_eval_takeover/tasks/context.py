"""What goes through lm-eval with a text: its run, in whose context it is judged, whether it was cut, and the verdict."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from lm_eval_takeover.calibration.commands import NO_TASK, RunTask

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

    def find_doc_id(self, instance: "Instance") -> int:
        """The number of an instance's document in its task; lm-eval's instances count those that were selected."""
        numbers, counted = self.selected.get(instance.task_name or ""), instance.doc_id or 0
        return numbers[counted] if numbers else counted

    def name_document(self, instance: "Instance") -> str:
        """The name of a document in errors."""
        return f"task {instance.task_name}, doc {self.find_doc_id(instance)}"


class Verdict(NamedTuple):
    """The verdict on one response to one document; `doc` and `response` are digests."""

    doc: str
    response: bytes
    answer: str | None
    outcome: str


@dataclass(frozen=True, slots=True, eq=False)
class RunContext:
    """How the texts of a model are judged in one evaluation."""

    evaluation: Evaluation = field(default_factory=Evaluation)
    verifier: "Verifier" = "takeover"
    think_end: str = ""  # ends the thinking of the model, beside the usual tags; empty: nothing else
    log: Callable[[Iterable[Verdict]], None] | None = None  # takes the verdicts


NO_RUN = RunContext()  # of texts by models of others


class Response(str):
    """The text of a sample, on its way through lm-eval to the judge of a task."""

    __slots__ = ("context", "truncated")
    truncated: bool  # its token limit ended it
    context: RunContext | None  # of the model that wrote it; None of texts by others

    def __new__(cls, text: str, truncated: bool = False, context: RunContext | None = None) -> Self:
        response = super().__new__(cls, text)
        response.truncated, response.context = truncated, context
        return response

    def __reduce__(self) -> tuple[type[Self], tuple[str, bool]]:
        """For another rank, which gathers what was judged; a context has open files."""
        return type(self), (str(self), self.truncated)


def find_context(responses: Iterable[str]) -> RunContext:
    """Of the model that wrote these texts, which are those of one evaluation."""
    carried = (response.context for response in responses if isinstance(response, Response))
    return next((context for context in carried if context is not None), NO_RUN)


class WithheldPrompt(str):
    """The prompt of a question that is written nowhere: no journal, file or log of ours has its text."""

    __slots__ = ()

"""What computes: the transformers engines of `decoding`, or vLLM: one interface, each imported only where it is asked for."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.decoding.teacher_forcing import Forced
    from lm_eval_takeover.method.generation import Generation
    from lm_eval_takeover.method.policy import Policy
    from lm_eval_takeover.method.registry import Score
    from lm_eval_takeover.method.request import Request
    from lm_eval_takeover.pair.pair import Pair


class Backend(Protocol):
    """Both models of a pair, loaded, and a policy that decides who writes."""

    @property
    def identity(self) -> str:
        """What of it can change a text, beyond the models: for the keys of samples."""

    def fit_rows(self, tokens: int) -> int:
        """How many samples of so many tokens it is given at a time."""

    def generate(
        self,
        requests: "Sequence[Request]",
        *,
        seed: int,
        rows: int,
        traced: bool = False,
        count_tokens: Callable[[int], None] | None = None,
        policy: "Policy | None" = None,
    ) -> "Iterator[tuple[int, Generation]]":
        """`(index into requests, generation)` as samples finish; see `decoding.engine.generate`.

        `policy` is another one of the models that are loaded.
        """

    def force(
        self,
        prompts: Sequence[Sequence[int]],
        continuations: Sequence[Sequence[int]],
        *,
        seed: int,
        labels: Sequence[str],
    ) -> "list[Forced]":
        """Each continuation as the policy would have met it; see `decoding.teacher_forcing.force`."""

    def compare(
        self,
        scores: "Sequence[Score]",
        prompts: Sequence[Sequence[int]],
        continuations: Sequence[Sequence[int]],
        labels: Sequence[str],
    ) -> "list[dict[str, NDArray[Any]]]":
        """What base and guide think of each continuation; see `decoding.teacher_forcing.compare`."""

    def close(self) -> None:
        """Give the memory back that other processes hold."""


def open_backend(arguments: "ModelArguments", pair: "Pair", policy: "Policy") -> Backend:
    """The backend that the arguments name, with the weights that the policy asks for."""
    if arguments.backend == "vllm":
        from lm_eval_takeover.vllm.backend import VllmBackend

        return VllmBackend(arguments, pair, policy)
    from lm_eval_takeover.decoding.backend import TransformersBackend

    return TransformersBackend(arguments, pair, policy)

"""A response that knows more than its text: whether it ran into its token limit."""

from typing import Self

from lm_eval_takeover.answers.extraction import has_unclosed_think


class Response(str):
    """The text of a sample, on its way through lm-eval to the scoring of a task. `truncated`: its token limit ended it."""

    __slots__ = ("truncated",)
    truncated: bool

    def __new__(cls, text: str, truncated: bool = False) -> Self:
        response = super().__new__(cls, text)
        response.truncated = truncated
        return response


def is_truncated(response: str) -> bool:
    """Whether a sample was cut off: as its model says, else where the text tells, by a `<think>` that never ends."""
    return response.truncated if isinstance(response, Response) else has_unclosed_think(response)


def is_known_truncated(response: str) -> bool:
    """Whether the run knows that the token limit ended a sample; then only a box or a marker counts."""
    return isinstance(response, Response) and response.truncated

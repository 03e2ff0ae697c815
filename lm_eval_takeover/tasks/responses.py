"""A response that knows more than its text: whether it ran into its token limit."""

from typing import Self


class Response(str):
    """The text of a sample, on its way through lm-eval to the scoring of a task. `truncated`: its token limit ended it."""

    __slots__ = ("truncated",)
    truncated: bool

    def __new__(cls, text: str, truncated: bool = False) -> Self:
        response = super().__new__(cls, text)
        response.truncated = truncated
        return response


def is_truncated(response: str, unclosed: bool) -> bool:
    """Whether a sample was cut off: as its model says, else where the text tells, by a `<think>` that never ends (`unclosed`)."""
    return response.truncated if isinstance(response, Response) else unclosed


def is_known_truncated(response: str) -> bool:
    """Whether the run knows that the token limit ended a sample; then only a box or a marker counts."""
    return isinstance(response, Response) and response.truncated

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

"""Where a text ends: the `until` strings of a request."""

from collections.abc import Sequence
from typing import Any


class StopStrings:
    """Whether the text of the tokens so far holds one of the `until` strings (special tokens included)."""

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._strings = [string for string in strings if string]
        # Some tokenizers take spaces away before what comes next, which only token by token shows.
        self._rewrites = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        # Every token but a part of a character is at least one byte long; the first few may be such parts.
        self._lookback = max((len(string.encode()) for string in self._strings), default=0) + 4

    def found(self, tokens: Sequence[int]) -> bool:
        """Whether a string has been written."""
        if not self._strings:
            return False
        return self._in(tokens[-self._lookback :])

    def may_end_in(self, before: Sequence[int], new: Sequence[int]) -> bool:
        """Whether `found` can become true at one of the tokens `new` after those before."""
        if not self._strings or self._rewrites:
            return bool(self._strings)
        return self._in([*before[-self._lookback :], *new])

    def _in(self, tokens: Sequence[int]) -> bool:
        text = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return any(string in text for string in self._strings)


def text_of(tokenizer: Any, tokens: Sequence[int], until: Sequence[str]) -> str:
    """The response as lm-eval's `hf` gives it: special tokens skipped, cut before the first stop string."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    for string in until:
        if string:
            text = text.split(string)[0]
    return text

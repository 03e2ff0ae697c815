"""Where a text ends: the `until` strings of a request, which count outside of thoughts, and its token limit."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from lm_eval_takeover.method.request import Request

_OPEN = "<think>"
_THOUGHTS = re.compile(rf"(?<={_OPEN}).*?(?=</think>|\Z)", re.DOTALL)


class StopStrings:
    """Whether the text of the tokens so far holds one of the `until` strings (special tokens included).

    Text inside of `<think>` does not count: a model may repeat the problem there. lm-eval's `hf` removes thoughts, too.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self._strings = [string for string in strings if string]
        # Some tokenizers remove a space when the next token comes. Only decoding token by token shows that.
        self._rewrites = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        # A token has at least one byte, but for parts of a character, of which the first few may be.
        self._lookback = max((len(string.encode()) for string in self._strings), default=0) + 4

    def found(self, tokens: Sequence[int]) -> bool:
        """Whether a string has been written."""
        if not self._strings or not self._in(tokens[-self._lookback :]):
            return False
        text = self._decode(tokens)
        return _OPEN not in text or _find_stop(text, self._strings) is not None

    def may_end_in(self, before: Sequence[int], new: Sequence[int]) -> bool:
        """Whether `found` can become true at one of the tokens `new` after those before."""
        if not self._strings or self._rewrites:
            return bool(self._strings)
        return self._in([*before[-self._lookback :], *new])

    def extend(self, tokens: list[int], new: Sequence[int], limit: int, ends: Collection[int]) -> tuple[int, bool]:
        """Append new tokens up to the one that ends the text: their number, and whether one did. limit: tokens of a text."""
        stops = self.may_end_in(tokens, new)
        for count, token in enumerate(new, 1):
            tokens.append(token)
            if len(tokens) == limit or token in ends or (stops and self.found(tokens)):
                return count, True
        return len(new), False

    def _in(self, tokens: Sequence[int]) -> bool:
        text = self._decode(tokens)
        return any(string in text for string in self._strings)

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False)
        return text


def text_of(tokenizer: Any, tokens: Sequence[int], until: Sequence[str]) -> str:
    """The response as lm-eval's `hf` gives it: special tokens skipped, cut before the first stop string."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return text[: _find_stop(text, [string for string in until if string])]


def _find_stop(text: str, strings: Sequence[str]) -> int | None:
    """The place of the first stop string outside thoughts, or None."""
    visible = _THOUGHTS.sub(lambda thoughts: "\0" * len(thoughts[0]), text)
    return min((start for start in map(visible.find, strings) if start >= 0), default=None)


def is_cut_off(tokenizer: Any, tokens: Sequence[int], request: Request, ends: Collection[int]) -> bool:
    """Whether its token limit ended a text, and neither an end token nor a stop string did."""
    if len(tokens) < request.max_new_tokens or tokens[-1] in ends:
        return False
    return not StopStrings(tokenizer, request.until).found(tokens)

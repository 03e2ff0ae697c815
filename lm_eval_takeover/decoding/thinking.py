"""A budget of tokens for the guide's thinking. When it is spent, the end tag is written in place of what was drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.pair.pair import Pair

TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>"))


def find_tags(pair: Pair, policy: Policy) -> tuple[int, int] | None:
    """The tokens that begin and end thinking; None without a budget. Raises ArgumentError where they are not one token each."""
    if policy.thinking_budget is None:
        return None
    known = {token: number for token, number in pair.tokenizer.get_vocab().items() if number < pair.vocab_size}
    for opens, ends in TAGS:
        if opens in known and ends in known:
            return known[opens], known[ends]
    tags = " and ".join(TAGS[0])
    raise ArgumentError(f"thinking_budget={policy.thinking_budget}: the guide has no tokens {tags}; leave it out")


@dataclass(slots=True)
class Thinking:
    """The thinking in one text. opens, ends: its tags. left: tokens until the end tag is forced; is_open: whether it goes on."""

    opens: int
    ends: int
    left: int
    is_open: bool

    @classmethod
    def begin(cls, tags: tuple[int, int], budget: int, prompt: Sequence[int], begun: Sequence[int]) -> Self:
        """Behind a prompt, which may open it, and the tokens of a text that goes on."""
        last = next((token for token in reversed(prompt) if token in tags), None)
        thinking = cls(*tags, budget, last == tags[0])
        thinking.limit(begun)
        return thinking

    def limit(self, tokens: Sequence[int]) -> tuple[Sequence[int], bool]:
        """The next tokens of the text, and whether the last of them is the end tag, forced."""
        for place, token in enumerate(tokens):
            if not self.is_open:
                self.is_open = token == self.opens
            elif token == self.ends:
                self.is_open = False
            elif self.left:
                self.left -= 1
            else:
                self.is_open = False
                return [*tokens[:place], self.ends], True
        return tokens, False

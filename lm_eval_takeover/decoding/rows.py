"""Samples while they are written: their tokens, the blocks that policies decide on, and where a text ends."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.caches import upload
from lm_eval_takeover.method.policy import Block, Policy
from lm_eval_takeover.method.request import Generation, Request
from lm_eval_takeover.method.sampling import CHANCE, as_chances, request_digest, words
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


# Stop strings do not count inside of it: a model may repeat the problem there. lm-eval's `hf` removes thoughts as well.
_OPEN = "<think>"
_THOUGHTS = re.compile(rf"(?<={_OPEN}).*?(?=</think>|\Z)", re.DOTALL)


class StopStrings:
    """Whether the text of the tokens so far, outside of `<think>`, holds one of the `until` strings (special tokens included)."""

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self._strings = [string for string in strings if string]
        # Some tokenizers remove a space when the next token comes. Only decoding token by token shows that.
        self._rewrites = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        # A token has at least one byte, but for parts of a character, of which the first few may be.
        self._lookback = max((len(string.encode()) for string in self._strings), default=0) + 4

    def found(self, tokens: Sequence[int]) -> bool:
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


@dataclass(slots=True)
class Decision:
    """A takeover that the donor has not drawn yet: its score and, for a trace, the host's logits and draw."""

    score: float
    window: Tensor  # `[window]` behind that token
    host: tuple[Tensor, int] | None = None  # its logits `[vocab]`, and what it drew


@dataclass(slots=True)
class Row:
    """A request, its emitted tokens, and its random numbers, which are made when it gets a slot."""

    index: int
    request: Request
    stop: StopStrings
    generation: Generation = field(default_factory=Generation)
    words: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # the same bits
    chances: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # the words of that stream
    window: Tensor = field(default_factory=lambda: torch.empty(0))  # `[window]`, the last scores
    due: Decision | None = None  # a takeover that the donor has not drawn yet
    thinking: Thinking | None = None  # under a budget

    def begin(self, policy: Policy, seed: int, device: torch.device) -> None:
        """Set random numbers and window before the first token."""
        digest, count = request_digest(self.request.prompt), self.request.max_new_tokens
        self.words = words(seed, digest, self.request.sample, count).view(np.int64)
        if policy.uses_chance:
            self.chances = words(seed, digest, self.request.sample, count, stream=CHANCE).view(np.int64)
        begun = self.generation.scores[-policy.window :]  # of a text that goes on
        self.window = torch.tensor([*[0.0] * (policy.window - len(begun)), *begun], device=device)

    @property
    def text(self) -> tuple[int, ...]:
        return (*self.request.prompt, *self.generation.tokens)

    @property
    def position(self) -> int:
        """Tokens emitted so far: `t`."""
        return len(self.generation.tokens)

    @property
    def remaining(self) -> int:
        return self.request.max_new_tokens - self.position

    @property
    def length(self) -> int:
        return len(self.request.prompt) + self.position

    @property
    def last(self) -> int:
        """The last token of the text, which no model has read yet."""
        return (self.generation.tokens or self.request.prompt)[-1]

    def tokens_from(self, place: int) -> list[int]:
        """The tokens of the whole text from `place` on, prompt included."""
        prompt = self.request.prompt
        return [*prompt[place:], *self.generation.tokens[max(0, place - len(prompt)) :]]

    def emit(
        self,
        tokens: Sequence[int],
        taken: Sequence[bool],
        scores: Sequence[float],
        observed: NDArray[np.float32] | None,
        ends: Collection[int],
    ) -> tuple[int, bool]:
        """Append tokens until one ends the text: the number of appended tokens, and whether the text has ended.

        observed: `[tokens or more, OBSERVED]`, for the trace, if there is one. A forced end of thinking replaces a token, and
        those behind it are not appended.
        """
        generation = self.generation
        if self.thinking is not None:
            tokens, is_forced = self.thinking.limit(tokens)
            generation.thought_cut |= is_forced
            if is_forced and observed is not None:  # what was drawn does not stand
                observed = observed[: len(tokens)].copy()
                observed[-1] = np.nan
        count, ended = self.stop.extend(generation.tokens, tokens, self.request.max_new_tokens, ends)
        generation.taken_over += taken[:count]
        generation.scores += scores[:count]
        if generation.observed is not None and observed is not None:
            generation.observed.frombytes(observed[:count].tobytes())
        return count, ended

    @property
    def name(self) -> str:
        """The name of its next token in errors."""
        return f"token {self.position} of {self.request.label}"


def list_rows(
    pair: Pair, policy: Policy, requests: Sequence[Request], begun: Sequence[Generation] | None, traced: bool
) -> list[Row]:
    """A row for each request. begun: generations to continue, one for each."""
    stops = cache(partial(StopStrings, pair.tokenizer))
    begun = begun or [Generation.begin(request, traced) for request in requests]
    rows = [Row(i, request, stops(request.until), own) for i, (request, own) in enumerate(zip(requests, begun, strict=True))]
    tags, budget = find_tags(pair, policy), policy.thinking_budget
    if tags is not None and budget is not None:
        for row in rows:
            row.thinking = Thinking.begin(tags, budget, row.request.prompt, row.generation.tokens)
    return rows


def stack_windows(rows: Sequence[Row]) -> Tensor:
    """The last scores of these rows: `[rows, window]`."""
    return torch.stack([row.window for row in rows])


def upload_next(rows: Sequence[Row], count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """In one copy: the last token and room for `count` more, int64 `[rows, 1 + count]`, and their words `[rows, count]`."""
    last = torch.zeros(len(rows), 1 + count, dtype=torch.long)
    last[:, 0] = torch.tensor([row.last for row in rows])
    both = upload(torch.cat([last, take_next(rows, count, "words")], 1), device)
    return both[:, : 1 + count], both[:, 1 + count :]


def build_block(
    policy: Policy, rows: Sequence[Row], scores: Tensor, tokens: Tensor | None, windows: Tensor, ahead: int = 0
) -> Block:
    """Positions `ahead` of the emitted tokens of these rows, with scores and the host's draws `[rows, k]`."""
    count, device = scores.shape[1], scores.device
    numbers = [[row.position + ahead for row in rows], [row.request.donor_length for row in rows]]
    positions, donor_length = upload(torch.tensor(numbers), device).unbind(0)
    chance = as_chances(upload(take_next(rows, count, "chances", ahead), device)) if policy.uses_chance else None
    return Block(
        positions[:, None] + torch.arange(count, device=device),
        scores,
        windows,
        chance,
        donor_length,
        tokens if policy.needs_token else None,
        [row.generation for row in rows] if policy.reads_text else None,
        rows[0].stop.tokenizer if policy.reads_text else None,
    )


def take_next(rows: Sequence[Row], count: int, stream: str, skipped: int = 0) -> Tensor:
    """The `words` or `chances` of the next `count` tokens: `[rows, count]`; 0 behind the last position."""
    numbers = [getattr(row, stream)[row.position + skipped :][:count] for row in rows]
    taken = np.zeros((len(rows), count), np.int64)
    for place, part in enumerate(numbers):
        taken[place, : len(part)] = part
    return torch.from_numpy(taken)


def blame(error: Exception, places: Iterable[int]) -> Exception:
    """The error with the requests that were in the failed pass, as their indices. Who knows fewer of them says so first."""
    vars(error).setdefault("places", list(places))
    return error

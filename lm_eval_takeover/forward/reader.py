"""The rows that one model has read, each of its own length, and passes over them; one at a time if layers keep a state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from lm_eval_takeover.forward.caches import RaggedCache, choose_device, copy_cache, pad_right, upload
from lm_eval_takeover.forward.forward_pass import ForwardPass, GraphedPass, StatePass
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw_rows

PREFILL_COLUMNS = 512  # columns of a prompt that are read at a time: masks grow with their product with the length
_MOST_AGAIN = 32  # tokens that are read again with the next ones; after more, the state is copied


@dataclass(slots=True)
class Drafted:
    """One drawn token per row: logits `[rows, vocab]`, tokens and masses `[rows]`. A GPU's next pass overwrites them."""

    logits: Tensor
    tokens: Tensor
    masses: Tensor


class Reader:
    """The rows of one model in their slots. `lengths[slot]`: tokens that a row has read; a smaller length is a roll-back."""

    def __init__(self, forward: ForwardPass, slots: int, vocab: int, columns: int = 2**31, *, graphed: bool = True) -> None:
        self.forward, self.vocab = forward, vocab
        self.cache = RaggedCache(len(forward.windows), slots, columns)
        self.lengths = [0] * slots
        self._graphed = GraphedPass(forward, self.cache, vocab) if graphed and forward.graphed else None

    def leave(self) -> None:
        """End the run. The next one may take this reader with its graphs (`take_reader`)."""
        if self._graphed is not None:
            self.forward.left_reader = self

    @property
    def pipeline_depth(self) -> int:
        """The number of drafted tokens that may be on their way to the host while the next one is computed."""
        return 0 if self._graphed is None else 1

    @property
    def longest(self) -> int | None:
        """The most new tokens of a row in a replayed pass. None without graphs."""
        return None if self._graphed is None else self._graphed.longest

    @property
    def device(self) -> torch.device:
        return self.forward.member.device

    def read(self, slots: Sequence[int], ids: Tensor, offset: int = 0) -> Tensor:
        """Logits `[rows, new, vocab]` after each of `ids` `[rows, new]`, read `offset` tokens behind each row's length.

        Lengths do not change: the caller adds the tokens that count. The next call may overwrite the logits.
        """
        return self._run(slots, ids.to(self.device), offset)

    def read_to_last(self, slots: Sequence[int], ids: Tensor, counts: Sequence[int]) -> Tensor:
        """Logits `[rows, vocab]` after the last of `counts` tokens of each row of `ids`, padded behind."""
        if ids.shape[1] == 1:
            return self.read(slots, ids)[:, 0]
        return self._run(slots, ids.to(self.device), 0, upload(torch.tensor(counts) - 1, self.device))[:, 0]

    def _run(self, slots: Sequence[int], ids: Tensor, offset: int, last: Tensor | None = None) -> Tensor:
        """One pass; `last` `[rows]` picks one token of each row."""
        if self._graphed is not None and ids.shape[1] <= self._graphed.longest:
            return self._graphed.read(self.lengths, slots, ids, offset, last)
        lengths = [self.lengths[slot] + offset for slot in slots]
        return self.forward(self.cache, slots, lengths, ids, self.vocab, last)

    def draft(self, slots: Sequence[int], ids: Tensor, offset: int, at: Tensor, sampling: Sampling) -> Drafted:
        """Read one token per row, `ids` `[rows, 1]`, and draw the next with the words `[rows]`. Under `drawing`."""
        if self._graphed is not None:
            return Drafted(*self._graphed.draft(self.lengths, slots, ids, offset, at, sampling))
        return self.draw(self.read(slots, ids, offset).select(1, 0), at, sampling)

    @staticmethod
    def draw(logits: Tensor, at: Tensor, sampling: Sampling) -> Drafted:
        """The next token of each row, from logits `[rows, vocab]` and words `[rows]`: the int64 of their bits."""
        logits = logits.to(choose_device(logits.device))
        return Drafted(logits, *draw_rows(logits, at.to(logits.device), sampling))

    def prefill(self, prompts: Sequence[Sequence[int]]) -> "Reader":
        """A reader of the same model that has read these prompts, one a row."""
        reader = Reader(self.forward, len(prompts), self.vocab, graphed=False)
        ids = pad_right(prompts, self.device)
        for start in range(0, ids.shape[1], PREFILL_COLUMNS):
            part = ids[:, start : start + PREFILL_COLUMNS]
            self.forward(reader.cache, range(len(prompts)), [start] * len(prompts), part, 0)
        reader.lengths = [len(prompt) for prompt in prompts]
        return reader

    def copy_row(self, source: "Reader", row: int, slot: int) -> None:
        """Copy a row of `source` into `slot`, over its contents."""
        self.cache.copy_row(source.cache, row, slot, source.lengths[row])
        self.lengths[slot] = source.lengths[row]


class StateReader(Reader):
    """A `Reader` of one slot for a model whose layers keep a state.

    A recurrent state cannot lose its last tokens, so it is copied where a block begins. After a roll-back, the accepted tokens
    are read again from the copy, in the same pass as the next ones. A pass reads one row: padding would enter the states.
    `_read` are the tokens in the cache. The copy has the first `_kept` of them. No roll-back goes before the copy.
    """

    forward: Any  # a StatePass

    def __init__(self, forward: StatePass, vocab: int) -> None:
        self.forward, self.vocab, self.lengths = forward, vocab, [0]
        self.cache = DynamicCache(config=forward.model.config)
        self._graphed = None
        self._read: list[int] = []
        self._copy, self._kept = copy_cache(self.cache), 0

    def read(self, slots: Sequence[int], ids: Tensor, offset: int = 0) -> Tensor:
        start, new = self.lengths[0] + offset, ids[0].tolist()
        again: list[int] = []
        if start < len(self._read):
            again = self._read[self._kept : start]
            self.cache, self._read = copy_cache(self._copy), self._read[: self._kept]
            if len(again) > _MOST_AGAIN:
                self._pass(again, keep=1)
                again = []
        if offset == 0 and not again:
            self._copy, self._kept = copy_cache(self.cache), start
        return self._pass(again + new, keep=len(new))

    def read_to_last(self, slots: Sequence[int], ids: Tensor, counts: Sequence[int]) -> Tensor:
        return self.read(slots, ids)[:, -1]

    def _pass(self, tokens: list[int], keep: int) -> Tensor:
        """Logits `[1, keep, vocab]` of the last of these tokens."""
        ids = torch.tensor([tokens], device=self.device)
        mask = torch.ones(1, len(self._read) + len(tokens), dtype=torch.long, device=self.device)
        self._read = self._read + tokens
        logits: Tensor = self.forward.member.compute_logits(ids, mask, cache=self.cache, keep=keep)
        return logits[..., : self.vocab]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> "StateReader":
        reader = StateReader(self.forward, self.vocab)
        (prompt,) = prompts
        for start in range(0, len(prompt), PREFILL_COLUMNS):
            reader._pass(list(prompt[start : start + PREFILL_COLUMNS]), keep=1)
        reader.lengths = [len(prompt)]
        return reader

    def copy_row(self, source: Any, row: int, slot: int) -> None:
        self.cache, self._read, self.lengths = copy_cache(source.cache), list(source._read), list(source.lengths)
        self._copy, self._kept = source.cache, len(source._read)


def take_reader(forward: ForwardPass | StatePass, slots: int, vocab: int, columns: int = 2**31) -> Reader:
    """A reader of `slots` rows of at most `columns` tokens. The last run's reader, with its graphs, if it has this size."""
    if isinstance(forward, StatePass):
        assert slots == 1, "verify_pass tells how many rows a pass has"
        return StateReader(forward, vocab)
    left, forward.left_reader = forward.left_reader, None
    if left is not None and (len(left.lengths), left.vocab) == (slots, vocab):
        left.lengths, left.cache.most_columns = [0] * slots, columns
        return left  # type: ignore[no-any-return]
    del left  # before there is another one
    return Reader(forward, slots, vocab, columns)

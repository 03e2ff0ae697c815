"""What one model has read: rows with their own lengths, and forward passes over any of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_eval_takeover.forward.draft_length import round_up
from lm_eval_takeover.forward.forward_pass import ForwardPass
from lm_eval_takeover.forward.graphed_pass import GraphedPass
from lm_eval_takeover.forward.padding import pad_right
from lm_eval_takeover.forward.ragged_cache import RaggedCache
from lm_eval_takeover.forward.transfers import choose_device, upload
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw_rows

PREFILL_COLUMNS = 512  # columns of a prompt that are read at a time: masks grow with their product with the length


@dataclass(slots=True)
class Drafted:
    """One drawn token per row: logits `[rows, vocab]`, tokens `[rows]` and masses `[rows]` as `draw_rows` gives them.

    What a GPU has drawn, the next pass overwrites.
    """

    logits: Tensor
    tokens: Tensor
    masses: Tensor


class Reader:
    """The rows of one model in their slots.

    `lengths[slot]` is how many tokens a row has read, at most as many as its columns were written: a smaller length is a
    roll-back.
    """

    def __init__(
        self, forward: ForwardPass, slots: int, vocab: int, columns: int = 2**31, *, graphed: bool = True
    ) -> None:
        self.forward, self.vocab = forward, vocab
        self.cache = RaggedCache(len(forward.windows), slots, columns)
        self.lengths = [0] * slots
        self._graphed = GraphedPass(forward, self.cache, vocab) if graphed and forward.graphed else None

    @classmethod
    def take(cls, forward: ForwardPass, slots: int, vocab: int, columns: int) -> "Reader":
        """The reader that the last run left, if it is of this size, with its graphs; else a new one.

        `columns` is what the longest row will need.
        """
        left, forward.left_reader = forward.left_reader, None
        if left is not None and (len(left.lengths), left.vocab) == (slots, vocab):
            left.lengths, left.cache.most_columns = [0] * slots, columns
            return left  # type: ignore[no-any-return]
        del left  # before there is another one
        return cls(forward, slots, vocab, columns)

    def leave(self) -> None:
        """The run is over: the next one may `take` it, where graphs were captured."""
        if self._graphed is not None:
            self.forward.left_reader = self

    @property
    def pipeline_depth(self) -> int:
        """How many drafted tokens may be on their way to the host while the next one is asked for."""
        return 0 if self._graphed is None else 1

    @property
    def longest(self) -> int | None:
        """New tokens a row of a pass that is replayed, at most; None where no pass is."""
        return None if self._graphed is None else self._graphed.longest

    @property
    def device(self) -> torch.device:
        return self.forward.member.device

    def padded_length(self, new: int) -> int:
        """What a pass over so many new tokens is padded to, so that few shapes, and the roundings that hang on them, occur.

        What is replayed pads itself.
        """
        return new if self._graphed is not None else round_up(new)

    def read(self, slots: Sequence[int], ids: Tensor, offset: int = 0) -> Tensor:
        """Logits `[rows, new, vocab]` after each of `ids` `[rows, new]`, read `offset` tokens behind each row's length.

        Lengths stay as they are: what was read counts once the caller adds it. The next call may overwrite the logits.
        """
        if self._graphed is not None and ids.shape[1] <= self._graphed.longest:
            return self._graphed.read(self.lengths, slots, ids.to(self.device), offset)
        lengths = [self.lengths[slot] + offset for slot in slots]
        return self.forward(self.cache, slots, lengths, ids.to(self.device), self.vocab)

    def read_to_last(self, slots: Sequence[int], ids: Tensor, counts: Sequence[int]) -> Tensor:
        """Logits `[rows, vocab]` after the last of `counts` tokens of each row of `ids`, padded behind."""
        if ids.shape[1] == 1:
            return self.read(slots, ids)[:, 0]
        last = upload(torch.tensor(counts) - 1, self.device)
        if self._graphed is not None and ids.shape[1] <= self._graphed.longest:
            return self._graphed.read(self.lengths, slots, ids.to(self.device), 0, last)[:, 0]
        lengths = [self.lengths[slot] for slot in slots]
        return self.forward(self.cache, slots, lengths, ids.to(self.device), self.vocab, last)[:, 0]

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
        """Put what a row of `source` has read into `slot`, over whatever is there."""
        self.cache.copy_row(source.cache, row, slot, source.lengths[row])
        self.lengths[slot] = source.lengths[row]

    def move_row(self, from_: int, to: int) -> None:
        """Put what one slot has read into another, over whatever is there."""
        self.copy_row(self, from_, to)

"""Reading with a model whose layers keep a state: what stood before a draft is kept, and a roll-back returns to it.

A state of a recurrent layer cannot lose its last tokens. So it is copied where a block begins; after a roll-back the tokens that
stand are read from there again, in the same pass as those that follow. Such a pass reads one row: padding would enter the states
of the shorter ones.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lm_eval_takeover.forward.forward_pass import ForwardPass, StatePass
from lm_eval_takeover.forward.padded_cache import copy_cache, create_cache
from lm_eval_takeover.forward.reader import PREFILL_COLUMNS, Reader

_MOST_AGAIN = 32  # tokens that are read again with those that follow; of more, the state is copied behind them


class StateReader(Reader):
    """The one row of such a model, as a `Reader` of one slot.

    `_read` are the tokens that the cache holds, `_kept` the first ones of them, that of the copy. Invariant: no roll-back goes
    behind the copy, which is made where a block begins.
    """

    forward: Any  # a StatePass

    def __init__(self, forward: StatePass, vocab: int) -> None:
        self.forward, self.vocab, self.lengths = forward, vocab, [0]
        self.cache = create_cache(forward.model.config)
        self._graphed = None
        self._read: list[int] = []
        self._copy, self._kept = copy_cache(self.cache), 0

    def padded_length(self, new: int) -> int:
        """No padding: it would enter the state."""
        return new

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
    """A reader of so many rows of at most `columns` tokens, that of the last run where it fits; of one row where layers keep a
    state."""
    if isinstance(forward, StatePass):
        assert slots == 1, "verify_pass tells how many rows a pass has"
        return StateReader(forward, vocab)
    return Reader.take(forward, slots, vocab, columns)

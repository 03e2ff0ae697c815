"""A left padded KV cache whose rows have one length. A step copies one column; transformers' own cache copies all.

For lockstep and teacher forcing, on any architecture, by transformers' own pass. Blocks use `ragged_cache`.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lm_eval_takeover.forward.ragged_cache import round_up_columns
from lm_eval_takeover.forward.transfers import pad_left
from lm_eval_takeover.pair.member import Member


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """A layer of full attention in buffers `[rows, heads, columns, head_dim]`; `keys` and `values` view the used columns."""

    keys: Tensor
    values: Tensor
    _buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values `[rows, heads, new, head_dim]`; return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = self.get_seq_length()
        length = held + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < length:
            columns, states = round_up_columns(length), (key_states, value_states)
            grown = [new.new_empty(*new.shape[:2], columns, new.shape[3]) for new in states]
            if held:
                for buffer, old in zip(grown, (self.keys, self.values), strict=True):
                    buffer[..., :held, :] = old
            self._buffers = (grown[0], grown[1])
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., held:length, :] = new
        self.keys, self.values = (buffer[..., :length, :] for buffer in self._buffers)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows, in new buffers of the same length."""
        if self._buffers is not None:
            length = self.get_seq_length()
            self._buffers = (self._buffers[0][beam_idx], self._buffers[1][beam_idx])
            self.keys, self.values = (buffer[..., :length, :] for buffer in self._buffers)


def create_cache(config: Any) -> DynamicCache:
    """An empty cache for this model; layers other than full attention stay transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def select_rows(cache: DynamicCache, rows: Tensor) -> DynamicCache:
    """A new cache with these rows, in this order; rows may repeat. The original does not change.

    A layer's `reorder_cache` selects keys, values and states. Tensors that it leaves out (DeepSeek V4) are selected here.
    """
    selected = copy.copy(cache)
    selected.layers = [_copy_layer(layer) for layer in cache.layers]
    selected.reorder_cache(rows)
    for layer, copied in zip(cache.layers, selected.layers, strict=True):
        _select_shared(vars(layer), vars(copied), rows)
    return selected


def copy_cache(cache: DynamicCache) -> DynamicCache:
    """An independent copy. States are copied, since passes write them in place. Keys and values are shared: they only grow."""
    copied = copy.copy(cache)
    copied.layers = [_copy_layer(layer) for layer in cache.layers]
    for layer in copied.layers:
        for states in vars(layer).values():
            if isinstance(states, dict):
                states.update({i: state.clone() for i, state in states.items() if isinstance(state, Tensor)})
    return copied


def _copy_layer(layer: Any) -> Any:
    """The layer with its own dictionaries, where linear attention keeps its states. Tensors are shared."""
    copied = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            setattr(copied, name, dict(value))
    return copied


def _select_shared(values: dict[Any, Any], copied: dict[Any, Any], rows: Tensor) -> None:
    """Select every tensor `[rows, …, …]` that the copy still shares with the original."""
    for name, value in values.items():
        if isinstance(value, dict):
            _select_shared(value, copied[name], rows)
        elif isinstance(value, Tensor) and value.ndim > 1 and copied[name] is value:
            copied[name] = value.index_select(0, rows.to(value.device))


@dataclass(slots=True)
class Sequences:
    """Rows that one model has read: its cache, left padded, and the logits of the next token.

    mask `[rows, length]`, logits `[rows, vocab]`. Without a cache, ids `[rows, length]` are read again at every token; with one,
    where the rotation changes.
    """

    member: Member
    vocab: int
    cache: DynamicCache | None
    ids: Tensor | None
    mask: Tensor
    logits: Tensor

    @classmethod
    def prefill(cls, member: Member, vocab: int, prompts: Sequence[Sequence[int]], *, cached: bool = True) -> "Sequences":
        ids, mask = pad_left(prompts, member.device)
        cache = create_cache(member.model.config) if cached else None
        again = None if cached and member.rotation_length is None else ids[:, :0]
        sequences = cls(member, vocab, cache, again, mask[:, :0], torch.empty(0))
        sequences.read(ids, mask)
        return sequences

    def append(self, tokens: Tensor) -> None:
        """Read one more token per row: tokens `[rows]`."""
        ids = tokens.to(self.member.device)[:, None]
        self.read(ids, torch.ones_like(ids))

    def read(self, ids: Tensor, mask: Tensor) -> None:
        """Read `ids` `[rows, new]` next. mask `[rows, new]`: 0 on padding, which stands before all text."""
        before, self.mask = self.mask.shape[1], torch.cat([self.mask, mask], dim=1)
        if self.ids is not None:
            self.ids = torch.cat([self.ids, ids], dim=1)
            if self.cache is None:
                ids = self.ids
            elif self.member.rotates_again(before, self.mask.shape[1]):
                self.cache, ids = create_cache(self.member.model.config), self.ids
        self.logits = self.member.compute_logits(ids, self.mask, cache=self.cache)[:, -1, : self.vocab]

    def select(self, rows: Sequence[int]) -> "Sequences":
        """These rows, in this order; rows may repeat. The original does not change."""
        index = torch.tensor(rows, device=self.member.device)
        return replace(
            self,
            cache=None if self.cache is None else select_rows(self.cache, index),
            ids=None if self.ids is None else self.ids[index],
            mask=self.mask[index],
            logits=self.logits[index],
        )

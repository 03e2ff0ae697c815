"""One word in its contexts, where both models agree and where they differ most ('Sparse but Critical').

A context is a whole word with the tokens beside it: `low` below 0.001 nats, `high` from 0.1 nats. The word is the one that is
most frequent in its rarer set. Contexts with the smallest digests of seed and place are shown, whatever the files' order.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_takeover.lab.analysis.choices import THRESHOLDS
from lm_eval_takeover.lab.analysis.tokens import SampleTokens

SETS = ("low", "high")
LOW, HIGH = THRESHOLDS[0], THRESHOLDS[-1]  # nats
SHOWN, BESIDE = 5, 8  # contexts of each set; tokens on either side


@dataclass(frozen=True)
class Words:
    """Of each token of a vocabulary and of one beyond it: its word or -1, and whether it begins and ends inside of a word."""

    names: list[str]
    word: NDArray[np.intp]
    begins: NDArray[np.bool_]
    ends: NDArray[np.bool_]

    @classmethod
    def read(cls, pieces: Sequence[str]) -> "Words":
        """`pieces` is the text of each token."""
        texts = [piece.strip().lower() for piece in pieces]
        names = sorted({text for text in texts if len(text) > 1 and text.isalpha()})
        places = {name: place for place, name in enumerate(names)}
        begins, ends = ([piece[at : at + 1 or None].isalnum() for piece in (*pieces, "")] for at in (0, -1))
        return cls(names, np.array([places.get(text, -1) for text in (*texts, "")]), np.array(begins), np.array(ends))

    def find(self, tokens: NDArray[Any]) -> NDArray[np.intp]:
        """The word of each token `[tokens]`, -1 where it is none or a part of a longer one."""
        clipped = np.minimum(tokens, len(self.word) - 1)
        indices: NDArray[np.intp] = self.word[clipped]
        joined = self.ends[clipped[:-1]] & self.begins[clipped[1:]]
        indices[1:][joined] = indices[:-1][joined] = -1
        return indices


def split(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which positions are low, and which high `[2, tokens]`."""
    return np.stack([values < LOW, values >= HIGH])


def count_words(samples: Iterable[SampleTokens], words: Words, score: str) -> NDArray[np.int64]:
    """How often each word is at positions of low and of high scores `[2, words]`."""
    counts = np.zeros((len(SETS), len(words.names)), dtype=np.int64)
    for sample in samples:
        indices = words.find(sample.columns["token_id"])
        for place, inside in enumerate(split(sample.score(score))):
            counts[place] += np.bincount(indices[inside & (indices >= 0)], minlength=counts.shape[1])
    return counts


def draw_contexts(samples: Iterable[SampleTokens], words: Words, word: int, score: str, seed: int) -> list[dict[str, Any]]:
    """Rows `set, task, doc_id, sample, position, value, token, before, after`; the last three are ids."""

    def list_all() -> Iterator[tuple[bytes, dict[str, Any]]]:
        for sample in samples:
            ids, values = sample.columns["token_id"], sample.score(score)
            places = words.find(ids) == word
            for name, inside in zip(SETS, split(values), strict=True):
                for at in np.flatnonzero(places & inside).tolist():
                    key = blake2b(f"{seed} {sample.name} {at}".encode(), digest_size=8).digest()
                    named = {"set": name, **dict(zip(("task", "doc_id", "sample"), sample.name, strict=True))}
                    beside = {"before": ids[max(0, at - BESIDE) : at], "after": ids[at + 1 : at + 1 + BESIDE]}
                    yield key, {**named, "position": at, "value": float(values[at]), "token": int(ids[at]), **beside}

    best: dict[str, list[tuple[bytes, int, dict[str, Any]]]] = {name: [] for name in SETS}
    for number, (key, row) in enumerate(list_all()):
        best[row["set"]] = heapq.nsmallest(SHOWN, [*best[row["set"]], (key, number, row)])
    return [row for name in SETS for _, _, row in best[name]]

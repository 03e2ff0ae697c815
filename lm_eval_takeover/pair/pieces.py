"""The text of each token, so that the pieces of a text make it up."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel


class BytesTokenizer:
    """A tokenizer of bytes, by `tokenizer.json` alone and without transformers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.convert_ids_to_tokens = tokenizer.id_to_token

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """None for one of another kind, and where `tokenizer_config.json` adds tokens."""
        file, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
        if not file.exists():
            return None
        tokenizer = Tokenizer.from_file(str(file))
        told = json.loads(config.read_text()) if config.exists() else {}
        added = [value for name, value in told.items() if name.endswith(("_token", "_tokens", "_decoder"))]
        known = all(tokenizer.token_to_id(name) is not None for name in _list_texts(added))
        return cls(tokenizer) if known and isinstance(tokenizer.decoder, ByteLevel) else None

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = False, **_: Any) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))


def _list_texts(value: Any) -> list[str]:
    """The texts in lists and maps of any depth."""
    if isinstance(value, (list, dict)):
        return [text for each in (value.values() if isinstance(value, dict) else value) for text in _list_texts(each)]
    return [value] if isinstance(value, str) else []


class Pieces:
    """The text of each token of a tokenizer, so that the pieces of a rollout make up its text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str | None] = {}  # None: a part of a character

    def split(self, tokens: Sequence[int]) -> list[str]:
        """A piece per token; a character of several tokens stands at the last of them."""
        pieces: list[str] = []
        waiting: list[int] = []
        for token in tokens:
            piece = self._piece(token)
            if piece is not None and not waiting:
                pieces.append(piece)
                continue
            waiting.append(token)
            text = self._decode(waiting)
            whole = "\ufffd" not in text or len(waiting) >= 8
            pieces.append(text if whole else "")
            if whole:
                waiting.clear()
        if waiting:
            pieces[-1] = self._decode(waiting)
        return pieces

    def name(self, token: int) -> str:
        """One token by itself."""
        piece = self._piece(token)
        return self._decode([token]) if piece is None else piece

    def list_names(self) -> list[str]:
        """Of every token of the vocabulary."""
        return [self.name(token) for token in range(len(self._tokenizer))]

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _piece(self, token: int) -> str | None:
        if token not in self._known:
            text = self._decode([token])
            raw = self._tokenizer.convert_ids_to_tokens(token) or ""
            if raw.startswith("\u2581") and not text.startswith(" "):  # sentencepiece drops the space of a first word
                text = " " + text
            self._known[token] = None if "\ufffd" in text else text
        return self._known[token]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

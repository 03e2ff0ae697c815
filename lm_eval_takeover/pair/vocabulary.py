"""The vocabulary that two models share: what has to agree before their distributions can be compared; the text of each token."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval_takeover.errors import VocabularyError

# GPT-2's alphabet, by which byte-level tokenizers write unprintable bytes: byte by character.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + place): byte for place, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))
}
LARGEST = 2**24  # token ids; the largest tokenizers have 2^18
SHOWN = 5  # differing entries that an error or a warning lists


def check_token_ids(folder: Path) -> None:
    """Raise VocabularyError for a far token id in `tokenizer.json`: libraries make lists of that length as they read it."""
    path = folder / "tokenizer.json"
    data = path.read_bytes() if path.is_file() else b""
    if not re.search(rb"\d{8}", data):
        return
    try:
        names = json.loads(data)["model"]["vocab"]
        ids = [index for index in names.values() if isinstance(index, int)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # its loader says what is wrong
        return
    _refuse_far(max(ids, default=0), str(folder))


_ADD_BOS = b"tokenizer.ggml.add_bos_token\x07\x00\x00\x00"  # in a GGUF file: a name and its type, before the value
_HEADER = 2**26  # bytes of a GGUF file in which its names are


def adds_bos(folder: Path, gguf_file: str | None = None) -> bool | None:
    """Whether the tokenizer's file says that texts begin with its BOS; None where it says nothing."""
    if gguf_file is not None:
        with (folder / gguf_file).open("rb") as file:
            _, _, value = file.read(_HEADER).partition(_ADD_BOS)
        return value[0] != 0 if value else None
    config = folder / "tokenizer_config.json"
    return json.loads(config.read_text()).get("add_bos_token") if config.is_file() else None


def _refuse_far(highest: int, name: str) -> None:
    if highest >= LARGEST:
        raise VocabularyError(f"'{name}' has a token id {highest}, more than any real vocabulary; mend its files")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token ids of one model: `size` rows of its output layer and the names that its tokenizer gives them."""

    size: int
    names: Mapping[int, str]
    added: frozenset[int]  # ids of added tokens: special ones, chat marks, reserved places

    @classmethod
    def of(cls, tokenizer: Any, size: int) -> "Vocabulary":
        names = {index: name for name, index in tokenizer.get_vocab().items()}
        _refuse_far(max([size - 1, *names]), tokenizer.name_or_path)
        return cls(size, names, frozenset(tokenizer.added_tokens_decoder))


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """The first `size` ids, the same to both; `digest` identifies them. `renamed`: (id, base's name, guide's name)."""

    size: int
    digest: str
    renamed: tuple[tuple[int, str | None, str | None], ...] = ()


def share(base: Vocabulary, guide: Vocabulary) -> SharedVocabulary:
    """The common part of two vocabularies.

    Different padded sizes share the smaller one (Qwen2.5: 151,936 and 152,064). Added tokens may carry different names on
    the same ids (Llama-3.1-8B and DeepSeek-R1-Distill-Llama-8B), and two formats of tokenizers may spell a token in two ways.
    Raises VocabularyError where anything else differs.
    """
    size = min(base.size, guide.size)
    same, renamed, different = [], [], []
    for index in range(size):
        b, g = base.names.get(index), guide.names.get(index)
        if b == g or (b is not None and g is not None and spellings(b) & spellings(g)):
            if b is not None:
                same.append((index, b))
        elif all(name is None or index in side.added for side, name in ((base, b), (guide, g))):
            renamed.append((index, b, g))
        else:
            different.append((index, b, g))
    if different:
        raise VocabularyError(
            f"base and guide do not share a vocabulary: {len(different)} of {size} entries differ, "
            f"first {describe(different)}; choose two models of one tokenizer family"
        )
    digest = hashlib.sha256(json.dumps([size, same], ensure_ascii=True).encode()).hexdigest()
    return SharedVocabulary(size, f"sha256:{digest}", tuple(renamed))


def spellings(name: str) -> set[bytes]:
    """The texts that a token's name may stand for: as it is, as sentencepiece spells it, and as byte-level tokenizers do."""
    texts = {name.encode(), name.replace("\u2581", " ").encode()}
    if re.fullmatch("<0x[0-9A-F]{2}>", name):
        texts.add(bytes.fromhex(name[3:5]))
    if all(character in _BYTES for character in name):
        texts.add(bytes(_BYTES[character] for character in name))
    return texts


def describe(entries: list[tuple[int, str | None, str | None]] | tuple[tuple[int, str | None, str | None], ...]) -> str:
    """`id 5: base 'x', guide 'y'` for the first few entries."""
    text = "; ".join(f"id {index}: base {b!r}, guide {g!r}" for index, b, g in entries[:SHOWN])
    return text + (f"; and {len(entries) - SHOWN} more" if len(entries) > SHOWN else "")


def is_byte_level(folder: Path) -> bool:
    """Whether tokens stand for bytes, by `tokenizer.json`: every class of transformers decodes these alike."""
    file = folder / "tokenizer.json"
    return file.exists() and (json.loads(file.read_bytes()).get("decoder") or {}).get("type") == "ByteLevel"


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
        piece = self._piece(token)
        return self._decode([token]) if piece is None else piece

    def list_names(self) -> list[str]:
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

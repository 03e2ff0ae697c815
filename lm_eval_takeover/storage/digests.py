"""Digests of values and texts."""

import hashlib
import json
from typing import Any


def digest_of(value: Any) -> str:
    """32 hexadecimal digits of a task's document, or of any other JSON value."""
    return digest_of_text(json.dumps(value, sort_keys=True, default=str, ensure_ascii=True)).hex()


def digest_of_text(text: str) -> bytes:
    """16 bytes of a text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()

"""Bytes and JSON values changed at random, as by a stranger."""

import json
import random
from functools import reduce

_LEAVES = (
    None, True, False, 0, -1, 1, 2, 10**18, 10**30, 10**400, -(10**9), 0.5, 1e308, -0.0, float("nan"), float("inf"), "", "x",
    "0", "1e9", "NaN", "../../x", "\x1b[31m\n", "\ud800", "9" * 400, "x" * 5000, [], {}, [[]], [None], [1, 2], {"": 1},
    {"id": 3}, {"a": {"b": []}}, *(reduce(lambda inner, _: [inner], range(levels), []) for levels in (60, 900)),
)  # fmt: skip


def _choose_leaf(rng):
    return json.loads(json.dumps(rng.choice(_LEAVES)))  # one of its own, which may be changed again


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flipped, cut, doubled, removed or foreign bytes."""
    at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    match rng.randrange(6):
        case 0 | 1:
            changed = bytearray(data)
            for _ in range(rng.choice((1, 1, 2, 8, 64))):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            return bytes(changed)
        case 2:
            return data[:at]
        case 3:
            return data[:at] + data[end:]
        case 4:
            return data[:end] + data[at:]
        case _:
            return data[:at] + rng.randbytes(rng.choice((1, 7, 300))) + data[at:]


def spoil_json(value, rng: random.Random):
    """The same with one or two values replaced, removed or added, anywhere."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2))):
        parent, key = _choose_place(value, rng)
        if parent is None:
            return _choose_leaf(rng)
        match rng.randrange(8):
            case 0 if isinstance(parent, dict):
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[rng.choice(("x", "\x1b[0m", "__class__", key + key))] = parent[key]
            case 1:
                parent.append(parent[key])
            case 2 if isinstance(parent, list):
                del parent[key]
            case _:
                parent[key] = _choose_leaf(rng)
    return value


def _choose_place(value, rng):
    """Container and key of a value: at every level further down with even chances, so that rare fields are met, too."""
    parent, key = None, None
    while isinstance(value, (dict, list)) and value and (parent is None or rng.random() < 0.75):
        parent = value
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value = value[key]
    return parent, key

"""JSON that someone else may have written, checked against type annotations.

    check({"id": "a/b", "revision": None}, ModelId, "base")    -> ModelId("a/b", None)
    check([0.5, 2], list[Share], "acc")                        -> ValueError: field 'acc[1]' is 2, expected a number from 0 to 1

Annotations: `bool`, `int`, `float`, `str`, `None`, `Any`, `Literal`, `list`, `tuple[X, ...]`, `tuple[X, Y]`, `dict[str, X]`,
unions, `Annotated[int, Between(1, 9)]`, dataclasses and TypedDicts. A dataclass is built, and a field that it does not know is
an error; a TypedDict stays a dict and may hold more. Numbers are finite. A bool is no number.
"""

import contextlib
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, NotRequired, Union, get_args, get_origin, is_typeddict

_LARGEST = {int: 2**63 - 1, float: 1e300}
_NAMES = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text",
    NoneType: "null", list: "a list", tuple: "a list", dict: "an object",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number, both included."""

    low: float = -math.inf
    high: float = math.inf


Share = Annotated[float, Between(0, 1)]
Count = Annotated[int, Between(0)]
Positive = Annotated[int, Between(1)]


def check(value: Any, hint: Any, path: str = "") -> Any:
    """The value in the type of `hint`. Raises ValueError with the path of the field and what was expected."""
    kind, inside = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return _check_union(value, hint, path)
    if is_dataclass(kind) or is_typeddict(kind):
        return _check_fields(value, kind, path)
    if not _is_plain(value, hint):
        fail(value, hint, path)
    if kind is tuple and inside and inside[1:] != (...,):
        if len(value) != len(inside):
            raise ValueError(f"field {path!r} has {len(value)} items, expected {len(inside)}")
        return tuple(check(item, inside[at], f"{path}[{at}]") for at, item in enumerate(value))
    if kind in (list, tuple) and inside:
        if inside[0] is float and all(type(item) is float and -_LARGEST[float] <= item <= _LARGEST[float] for item in value):
            return kind(value)  # 30 times as fast: columns of a calibration
        return kind(check(item, inside[0], f"{path}[{at}]") for at, item in enumerate(value))
    if kind is dict and inside:
        return {name: check(item, inside[1], join(path, name)) for name, item in value.items()}
    return float(value) if (inside[0] if kind is Annotated else kind) is float else value


def fail(value: Any, hint: Any, path: str) -> NoReturn:
    """Raises ValueError: the field at this path holds this value, and not that type."""
    raise ValueError(f"{f'field {path[:200]!r} ' if path else ''}is {show(value)}, expected {describe(hint)}")


def show(value: Any) -> str:
    """A value of someone else in at most 40 printable characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."


def join(path: str, name: str) -> str:
    """The path of a field inside the object at `path`."""
    return f"{path}.{name}" if path and name else path or name


def describe(hint: Any) -> str:
    kind, inside = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return " or ".join(describe(option) for option in inside)
    if kind is Literal:
        return " or ".join(map(show, inside))
    if kind is Annotated:
        name, (low, high) = _NAMES[inside[0]], (inside[1].low, inside[1].high)
        return f"{name} of at least {low:g}" if math.isinf(high) else f"{name} from {low:g} to {high:g}"
    return _NAMES.get(kind, "an object")


def _is_plain(value: Any, hint: Any) -> bool:
    """Whether a value has the type of an annotation, whatever its items are."""
    kind, inside = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return True
    if kind is Literal:
        return any(type(value) is type(option) and value == option for option in inside)
    bounds = Between()
    if kind is Annotated:
        kind, bounds = inside
    if kind in (int, float):
        largest = _LARGEST[kind]
        is_number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
        return is_number and max(bounds.low, -largest) <= value <= min(bounds.high, largest)
    return isinstance(value, (list, tuple) if kind is tuple else NoneType if kind is None else kind)


def _check_union(value: Any, hint: Any, path: str) -> Any:
    options = get_args(hint)
    others = [option for option in options if option is not NoneType]
    if value is None and len(others) < len(options):
        return None
    if len(others) == 1:
        return check(value, others[0], path)
    for option in others:
        with contextlib.suppress(ValueError):
            return check(value, option, path)
    fail(value, hint, path)


def _check_fields(value: Any, kind: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        fail(value, kind, path)
    hints, required = _describe_fields(kind)
    for name, hint in hints.items():
        if name in required and name not in value:
            raise ValueError(f"field {join(path, name)!r} is missing, expected {describe(hint)}")
    checked = {name: check(value[name], hint, join(path, name)) for name, hint in hints.items() if name in value}
    if is_typeddict(kind):
        return {**value, **checked}
    if unknown := sorted(value.keys() - hints.keys()):
        raise ValueError(f"field {join(path, unknown[0])[:200]!r} is not known; known: {', '.join(hints)}")
    return kind(**checked)


@cache
def _describe_fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The annotations of a dataclass or TypedDict by field, and the names that must be there."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        inner = {name: get_args(hint)[0] if get_origin(hint) is NotRequired else hint for name, hint in hints.items()}
        return inner, kind.__required_keys__
    names = [field for field in fields(kind) if field.init]
    needed = frozenset(f.name for f in names if f.default is MISSING and f.default_factory is MISSING)
    return {field.name: hints[field.name] for field in names}, needed

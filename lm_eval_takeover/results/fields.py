"""Reads JSON of others. Errors name the file and the field."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from lm_eval_takeover.errors import ResultsError
from lm_eval_takeover.storage.files import open_input, read_bounded
from lm_eval_takeover.storage.schema import Share, check, describe, join, show

LARGEST_DOCUMENT = 64 * 2**20  # bytes of a file, or of a line, that is parsed as one; lm-eval's results have some KB
_REQUIRED = object()


class Fields:
    """An object in a file. `name` is its dotted path there."""

    def __init__(self, place: str, value: Any, name: str = "") -> None:
        self.place, self.name = place, name
        if not isinstance(value, dict):
            self.fail("", f"is {show(value)}, expected an object")
        self._values: Mapping[str, Any] = value

    def __contains__(self, field: str) -> bool:
        return field in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, field: str, default: Any = None) -> Any:
        """The value of a field, unchecked."""
        return self._values.get(field, default)

    def require(self, field: str, hint: Any, default: Any = _REQUIRED) -> Any:
        """The value of a field, checked against a type (`storage.schema`); `default` if the field is missing."""
        value = self._values.get(field, default)
        if value is _REQUIRED:
            self.fail(field, f"is missing, expected {describe(hint)}")
        if value is default:
            return value
        try:
            return check(value, hint, self._path(field))
        except ValueError as error:
            raise ResultsError(f"{self.place}: {error}") from None

    def inside(self, field: str) -> "Fields":
        """The object in a field."""
        return Fields(self.place, self.require(field, dict), self._path(field))

    def inside_or_empty(self, field: str) -> "Fields":
        """The object in a field; an empty one if the field is missing or null."""
        return self.inside(field) if self._values.get(field) is not None else Fields(self.place, {}, self._path(field))

    def share(self, field: str) -> float:
        """The number from 0 to 1 in a field."""
        if isinstance(value := self.get(field), bool):  # as IFEval has it
            return float(value)
        share: float = self.require(field, Share)
        return share

    def fail(self, field: str, text: str) -> NoReturn:
        path = self._path(field)
        raise ResultsError(f"{self.place}: {f'field {path!r} ' if path else ''}{text}")

    def _path(self, field: str) -> str:
        return join(self.name, field)


def read_document(path: Path, writer: str) -> Fields:
    """Read the object in a file. Errors name `writer`, the command that makes such files. Raises ResultsError."""
    return Fields(f"'{path}'", _read_json(path, writer))


def read_rows(path: Path, writer: str, hint: Any) -> list[Any]:
    """Read the list in a file, each item checked against a type (`storage.schema`). Raises ResultsError."""
    content = _read_json(path, writer)
    try:
        rows: list[Any] = check(content, list[hint])
    except ValueError as error:
        raise ResultsError(f"'{path}': {error}; write it again with {writer}") from None
    return rows


def _read_json(path: Path, writer: str) -> Any:
    try:
        return json.loads(read_bounded(path, LARGEST_DOCUMENT))
    except OSError as error:
        why = error.strerror or error
        raise ResultsError(f"'{path}' cannot be read: {why}; expected a file of {writer}") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"'{path}' is not JSON ({error}); write it again with {writer}") from error


def read_lines(path: Path, writer: str, skip: Callable[[str], None] | None = None) -> Iterator[Fields]:
    """The object of each line. With `skip`, a line that is no JSON is left out and reported there. Raises ResultsError."""
    try:
        with open_input(path) as stream:
            number = 0
            while line := stream.readline(LARGEST_DOCUMENT + 1):
                number += 1
                place = f"'{path}', line {number}"
                if not line.strip():
                    continue
                if len(line) > LARGEST_DOCUMENT:
                    raise ResultsError(f"{place} has more than {LARGEST_DOCUMENT // 2**20} MB; expected one document")
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    if skip is None:
                        raise ResultsError(f"{place} is not JSON ({error}); write it again with {writer}") from error
                    skip(f"{place} is left out: it is not JSON ({error})")
                else:
                    yield Fields(place, value)
    except OSError as error:
        raise ResultsError(f"'{path}' cannot be read: {error.strerror or error}") from error

"""JSON documents of lm-eval and of ours: their fields, checked, and the settings in them that can change texts or scores.

Errors name the file and the field. Settings are flat, `name -> value`, of a task or of the model.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from lm_eval_takeover.arguments import KINDS, PROMPT
from lm_eval_takeover.errors import ResultsError
from lm_eval_takeover.runs.identity import HARMLESS, JUDGING
from lm_eval_takeover.storage.digests import digest_of_text
from lm_eval_takeover.storage.files import open_input, read_bounded
from lm_eval_takeover.storage.schema import Positive, Share, check, describe, join, show

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
    return Fields(f"'{path}'", read_json(path, writer))


def read_rows(path: Path, writer: str, hint: Any) -> list[Any]:
    """Read the list in a file, each item checked against a type (`storage.schema`). Raises ResultsError."""
    content = read_json(path, writer)
    try:
        rows: list[Any] = check(content, list[hint])
    except ValueError as error:
        raise ResultsError(f"'{path}': {error}; write it again with {writer}") from None
    return rows


def read_json(path: Path, writer: str) -> Any:
    """The content of a file, unchecked. Raises ResultsError."""
    try:
        return json.loads(read_bounded(path, LARGEST_DOCUMENT))
    except OSError as error:
        why = error.strerror or error
        raise ResultsError(f"'{path}' cannot be read: {why}; expected a file of {writer}") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"'{path}' is not JSON ({error}); write it again with {writer}") from error


def read_lines(path: Path, writer: str) -> Iterator[Fields]:
    """The object of each line. Raises ResultsError."""
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
                    raise ResultsError(f"{place} is not JSON ({error}); write it again with {writer}") from error
                yield Fields(place, value)
    except OSError as error:
        raise ResultsError(f"'{path}' cannot be read: {error.strerror or error}") from error


# Settings

Settings = dict[str, Any]

_DIGEST = re.compile(r"\b(?:blake2b|sha256):([0-9a-f]{8})[0-9a-f]+")
_MEANINGS = {"schema": " (the rule that draws tokens)"}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function without source


def parse_model_args(value: Any) -> dict[str, str]:
    """lm-eval's model_args, an object or `name=value,…`, with values as texts."""
    if isinstance(value, Mapping):
        return {str(name): str(content) for name, content in value.items()}
    pairs = (part.partition("=") for part in str(value or "").split(",") if part)
    return {name.strip(): content.strip() for name, _, content in pairs}


def task_settings(document: Fields, task: str) -> Settings:
    """The settings of one task that rows of one table should share, without the seed."""
    config = document.inside_or_empty("configs").inside_or_empty(task)
    arguments = parse_model_args(document.inside("config").get("model_args"))
    decoding = config.inside_or_empty("generation_kwargs")
    counts = document.inside_or_empty("n-samples").inside_or_empty(task)
    limit, problems = counts.get("effective"), counts.get("original")
    settings: Settings = {name: decoding.get(name) for name in decoding if name != "seed"}
    settings |= {
        "task_version": document.inside_or_empty("versions").get(task),
        "samples": config.require("repeats", Positive, None),
        "limit": None if limit == problems else limit,
        "prompt": config.get("doc_to_text"),
        "num_fewshot": document.inside_or_empty("n-shot").get(task),
        "system_instruction": document.get("system_instruction_sha"),
        "chat_template": document.get("chat_template_sha"),
        "thinking": arguments.get("enable_thinking"),
    }
    if not document.inside("config").get("takeover"):  # whose own settings have all ends
        settings["end_tokens"] = document.get("eot_token_id")
    metadata = config.inside_or_empty("metadata")
    scorer = json.dumps([metadata.get("scorer"), *(config.get(name) for name in JUDGING)], sort_keys=True, default=str)
    settings["scorer"] = digest_of_text(_ADDRESS.sub("", scorer)).hex()
    verifier = metadata.get("verifier")
    return settings if verifier in (None, "takeover") else settings | {"verifier": verifier}


def model_settings(document: Fields) -> Settings:
    """The model and its arguments that can change a text, without the seed; for a takeover run as they were resolved."""
    config = document.inside("config")
    texts: Settings = config.inside_or_empty("takeover").require("text_settings", dict, {})
    skipped = HARMLESS | {"seed"} | {name for name, kind in KINDS.items() if texts and kind != PROMPT}
    arguments = parse_model_args(config.get("model_args"))
    settings: Settings = {"model": config.get("model")}
    settings |= {f"model_args.{name}": value for name, value in arguments.items() if name not in skipped}
    settings |= {name: config.get(name) for name in ("model_sha", "model_dtype") if name in config}
    return settings | flatten({name: value for name, value in texts.items() if name != "seed"})


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Settings:
    """`text_settings` by short names: `tau` of the policy, `base` and `base.dtype` of a model."""
    flat: Settings = {}
    for name, value in settings.items():
        short = {"name": "policy", "model": ""}.get(name, name)
        place = ".".join(filter(None, (prefix, short)))
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, "" if name in ("policy", "models") else place)
        else:
            flat[place] = value
    return flat


def name_model(config: Fields, takeover: Fields, kind: str) -> str:
    """The last part of the id of a row's model: the base, or who hosts; of other models what they were loaded from."""
    if kind == "other":
        arguments = parse_model_args(config.get("model_args"))
        name = next((arguments[name] for name in ("pretrained", "model", "path", "engine") if name in arguments), None)
    else:
        reverse = kind == "guided" and takeover.get("direction") == "reverse"
        name = takeover.inside_or_empty("guide" if reverse or kind == "guide" else "base").get("id")
    return str(name or config.require("model", str)).rstrip("/").rpartition("/")[2]


def find_differences(old: Settings, new: Settings, ignored: Iterable[str] = ()) -> dict[str, str]:
    """`name: old -> new` of every setting that differs, by its name and in the order of names."""
    names = [name for name in sorted((old.keys() | new.keys()) - set(ignored)) if old.get(name) != new.get(name)]
    return {name: f"{name}{_MEANINGS.get(name, '')}: {_show(old.get(name))} -> {_show(new.get(name))}" for name in names}


def describe_varying(settings: Mapping[str, Settings]) -> list[str]:
    """`name: value (rows), value (the rest)` of every setting that is not the same in all rows, which come by name."""
    lines = []
    for name in sorted({name for row in settings.values() for name in row}):
        rows: dict[str, list[str]] = {}
        for label, row in settings.items():
            rows.setdefault(_show(row.get(name)), []).append(label)
        if len(rows) > 1:
            *few, (value, most) = sorted(rows.items(), key=lambda item: len(item[1]))
            shown = [f"{each} ({', '.join(labels)})" for each, labels in few]
            rest = "the rest" if len(most) > 2 else ", ".join(most)
            lines.append(f"{name}: {', '.join([*shown, f'{value} ({rest})'])}")
    return lines


def _show(value: Any) -> str:
    text = _DIGEST.sub(r"files \1…", "none" if value is None else str(value))
    return repr(text) if "\n" in text else text if len(text) <= 60 else f"{text[:57]}..."

"""Reads the settings of a run that can change its texts or scores, as flat `name -> value`: of a task, or of the model."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lm_eval_takeover.arguments import KINDS, PROMPT
from lm_eval_takeover.results.fields import Fields
from lm_eval_takeover.runs.identity import HARMLESS, JUDGING
from lm_eval_takeover.storage.digests import digest_of_text
from lm_eval_takeover.storage.schema import Positive

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
    settings: Settings = {name: decoding.get(name) for name in decoding if name != "seed"}
    settings |= {
        "task_version": document.inside_or_empty("versions").get(task),
        "samples": config.require("repeats", Positive, None),
        "limit": document.inside("config").get("limit"),
        "prompt": config.get("doc_to_text"),
        "num_fewshot": document.inside_or_empty("n-shot").get(task),
        "system_instruction": document.get("system_instruction_sha"),
        "chat_template": document.get("chat_template_sha"),
        "thinking": arguments.get("enable_thinking"),
        "end_tokens": document.get("eot_token_id"),
    }
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


def list_differences(old: Settings, new: Settings, ignored: Iterable[str] = ()) -> list[str]:
    """`name: old -> new` of every setting that differs, in the order of names."""
    pairs = ((name, _show(old.get(name)), _show(new.get(name))) for name in name_differences(old, new, ignored))
    return [f"{name}{_MEANINGS.get(name, '')}: {before} -> {now}" for name, before, now in pairs]


def name_differences(old: Settings, new: Settings, ignored: Iterable[str] = ()) -> list[str]:
    """The names of the settings that differ, in order."""
    return [name for name in sorted((old.keys() | new.keys()) - set(ignored)) if old.get(name) != new.get(name)]


def describe_varying(settings: Mapping[str, Settings]) -> list[str]:
    """`name: value (rows), value (the rest)` of every setting that is not the same in all rows, which come by name."""
    lines = []
    for name in sorted({name for row in settings.values() for name in row}):
        rows: dict[str, list[str]] = {}
        for label, row in settings.items():
            rows.setdefault(_show(row.get(name)), []).append(label)
        if len(rows) > 1:
            *few, (value, most) = sorted(rows.items(), key=lambda item: len(item[1]))
            shown = [*((each, ", ".join(labels)) for each, labels in few), (value, ", ".join(most))]
            if len(most) > 2:
                shown[-1] = value, "the rest"
            lines.append(f"{name}: " + ", ".join(f"{each} ({labels})" for each, labels in shown))
    return lines


def _show(value: Any) -> str:
    text = _DIGEST.sub(r"files \1…", "none" if value is None else str(value))
    return repr(text) if "\n" in text else text if len(text) <= 60 else f"{text[:57]}..."

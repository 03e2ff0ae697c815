"""A client's request as requests of one sample each: what is read of it, and how much it may ask for.

Bodies are untrusted. A malformed body, or one out of bounds, is a ValueError of one line: the server's answer is 400.
"""

import json
import math
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lm_eval_takeover.errors import nearest
from lm_eval_takeover.storage.digests import digest_of_text
from lm_eval_takeover.storage.schema import show
from lm_eval_takeover.vllm.settings import PREFIX, EngineSettings, RequestSettings, build_policy, change_policy, describe_policy

MOST_BYTES = 2**23
MOST_SAMPLES = 256  # prompts times `n`
DEEPEST = 64  # levels of lists and objects
MOST_ITEMS = 1024  # of a list or an object
_REMEMBERED = 2**16  # prompts whose repeats are numbered, the latest
_LONGEST_RUN = 200  # characters
# A client's draws: OpenAI's default, the type, the least and largest value.
_DRAWS: dict[str, tuple[Any, type, float, float]] = {
    "temperature": (1.0, float, 0.0, 1e6),
    "top_p": (1.0, float, 0.0, 1.0),
    "top_k": (0, int, -1, 2**31),
    "min_p": (0.0, float, 0.0, 1.0),
    "seed": (None, int, -(2**63), 2**63 - 1),
}
_LARGEST = 2**31 - 1
# What a client may set with the prefix `takeover_`: its type, and the least and largest value.
CLIENT: dict[str, tuple[type, float, float]] = {
    "tau": (float, -1e9, 1e9),
    "kappa": (float, 0.0, 1e9),
    "window": (int, 1, 4096),
    "rate": (float, 0.0, 1.0),
    "early_tokens": (int, 0, _LARGEST),
    "sample": (int, 0, _LARGEST),
}
# Options that change vLLM's own draws, and the values at which they change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "use_beam_search": (False,),
    "structured_outputs": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "length_penalty": (1,),
    "best_of": (1,),
}
# Fields of OpenAI's that change no text; vLLM has no such fields.
_HARMLESS = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user", *_NEUTRAL})


@dataclass(frozen=True, slots=True)
class OneSample:
    """One request to vLLM's own route, and the part of its answer that the client gets."""

    id: str
    body: dict[str, Any]
    traced: bool
    shows_usage: bool  # at the end of a stream
    shows_ids: bool  # of tokens


class Repeats:
    """Counts how often each run asked a prompt. Forgets the prompts that were unused the longest."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._most = most

    def next(self, run: str, prompt: Any) -> int:
        """Number this repeat, from 0."""
        key = digest_of_text(json.dumps([run, prompt]))
        number = self._counts.pop(key, 0)
        self._counts[key] = number + 1
        if len(self._counts) > self._most:
            self._counts.popitem(last=False)
        return number


def parse_body(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises ValueError for NaN, infinities, deep nesting and long lists; prompts may be long."""
    try:
        body = json.loads(data, parse_constant=_parse_float, parse_float=_parse_float)
    except RecursionError:
        raise ValueError(f"the body is nested deeper than {DEEPEST} levels") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the body is no JSON object: {error}") from None
    if not isinstance(body, dict):
        raise ValueError(f"the body is {show(body)}; expected a JSON object")
    _check_items("the body", {name: value for name, value in body.items() if name != "prompt"})
    for name, value in body.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError(f"{show(name)} has half of a surrogate pair; expected Unicode text") from None
    return body


def _check_items(name: str, values: Any, depth: int = 1) -> None:
    """Raises ValueError for a long list or object in this field, and for deep nesting."""
    if not isinstance(values, (dict, list)):
        return
    if depth > DEEPEST:
        raise ValueError(f"the body is nested deeper than {DEEPEST} levels")
    if len(values) > MOST_ITEMS:
        raise ValueError(f"{name[:40]} has {len(values)} items; expected at most {MOST_ITEMS}")
    for inner_name, inner in values.items() if isinstance(values, dict) else ((name, each) for each in values):
        _check_items(inner_name, inner, depth + 1)


def _parse_float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


def split_request(body: dict[str, Any], engine: EngineSettings, repeats: Repeats, length: int) -> list[OneSample]:
    """One request a sample. length: the engine's context in tokens. Raises ValueError for what the engine cannot honour."""
    body = dict(body)
    extra = _take(body, "vllm_xargs", dict) or {}
    run = extra.pop(f"{PREFIX}run", "")
    if (traced := extra.pop(f"{PREFIX}trace", 0)) not in (0, 1):
        raise ValueError(f"{PREFIX}trace={show(traced)}; expected 0 or 1")
    _check_draws(body, engine)
    if body.get("stream") not in (None, False, True):  # vLLM reads words, too
        raise ValueError(f"stream={show(body['stream'])}; expected true or false")
    if traced and body.get("echo"):
        raise ValueError(f"echo=true goes without {PREFIX}trace: a trace tells of the tokens that are written")
    if not isinstance(run, str | int) or len(str(run)) > _LONGEST_RUN:
        raise ValueError(f"{PREFIX}run={show(run)}; expected a text of at most {_LONGEST_RUN} characters")
    given = _read_settings(extra)
    others = {name: value for name, value in extra.items() if not name.startswith(PREFIX)}
    draws = _read_draws(body, engine)
    first = given.pop("sample", None)
    policy = describe_policy(change_policy(build_policy(engine.policy), given)) if given else ""
    _ = RequestSettings(**draws).sampling
    prompts, name = _list_prompts(body, engine, length)
    count = _read_number("n", 1 if (asked := body.pop("n", None)) is None else asked, int, 1, MOST_SAMPLES)
    if count * len(prompts) > MOST_SAMPLES:
        raise ValueError(f"n={count} of {len(prompts)} prompts is more than {MOST_SAMPLES} samples; send several requests")
    _check_lengths(body, prompts, count, length)
    stops = _take(body, "stop_token_ids", list) or []
    if not all(isinstance(stop, int) for stop in stops):
        raise ValueError("stop_token_ids: expected a list of token ids")
    shown = {"shows_usage": _ask_for_usage(body), "shows_ids": bool(body.get("return_token_ids"))}
    if traced:
        body["return_token_ids"] = True
    samples = []
    for prompt in prompts:
        for repeat in range(count):
            sample = repeats.next(str(run), prompt) if first is None else first + repeat
            settings = RequestSettings(id=uuid4().hex, sample=sample, traced=bool(traced), policy=policy, **draws)
            # vLLM's own draw has one token to choose from.
            drawn = {"n": 1, "temperature": 0, "stop_token_ids": sorted({*stops, *engine.ends})}
            own = {name: prompt, "vllm_xargs": others | settings.to_extra_args()}
            samples.append(OneSample(settings.id, body | drawn | own, bool(traced), **shown))
    return samples


def check_fields(body: dict[str, Any], known: Collection[str]) -> None:
    """Raises ValueError for a field that nothing reads; `known` are vLLM's."""
    for name, value in body.items():
        if value is not None and name not in known and name not in _HARMLESS:
            raise ValueError(f"'{name[:40]}' is not read by this server; leave it out")


def _ask_for_usage(body: dict[str, Any]) -> bool:
    """Make a stream end with its usage, which counts its tokens. Returns whether the client asked for it, too."""
    options = body.get("stream_options")
    if body.get("stream") and (options is None or isinstance(options, dict)):  # vLLM refuses all else
        body["stream_options"] = {**(options or {}), "include_usage": True}
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _read_draws(body: dict[str, Any], engine: EngineSettings) -> dict[str, Any]:
    draws = {}
    for name, (default, kind, low, high) in _DRAWS.items():
        value = body.pop(name, None)
        draws[name] = default if value is None else _read_number(name, value, kind, low, high)
    draws["top_k"] = max(draws["top_k"], 0)  # vLLM's -1 is 0 here
    return draws | {"seed": engine.seed if draws["seed"] is None else draws["seed"]}


def _read_settings(extra: dict[str, Any]) -> dict[str, Any]:
    """A client's settings. Ignores names without our prefix. Raises ValueError for unknown names, wrong types and ranges."""
    settings = {}
    for prefixed, value in extra.items():
        if not prefixed.lower().replace("-", "_").startswith(PREFIX):
            continue
        name = prefixed.removeprefix(PREFIX)
        if name not in CLIENT:
            raise ValueError(f"unknown setting '{prefixed[:80]}'; {nearest(prefixed, [PREFIX + known for known in CLIENT])}")
        with suppress(ValueError):  # clients may send numbers as texts
            value = float(value) if isinstance(value, str) else value
        settings[name] = _read_number(prefixed, value, *CLIENT[name])
    return settings


def _read_number(name: str, value: Any, kind: type, low: float, high: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high or value != kind(value):
        raise ValueError(f"{name}={show(value)}; expected a {'whole ' if kind is int else ''}number from {low:g} to {high:g}")
    return kind(value)


def _take(body: dict[str, Any], name: str, kind: type) -> Any:
    """Remove a field from the body and return a copy. Raises ValueError for another type."""
    value = body.pop(name, None)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{name} is {show(value)}; expected {'an object' if kind is dict else 'a list'}")
    return None if value is None else kind(value)


def _check_draws(body: dict[str, Any], engine: EngineSettings) -> None:
    """Refuse what changes vLLM's own draws, since the gate draws; and log-probabilities, which drafts do not keep."""
    for name in ("logprobs", "top_logprobs"):
        value = body.get(name)
        if engine.block > 1 and value is not None and value is not False:
            raise ValueError(
                f"{name}={show(value)}: this server verifies drafts of {engine.block} tokens, whose log-probabilities are "
                f"not kept; start one with block_size=1"
            )
    for name, neutral in _NEUTRAL.items():
        if (value := body.get(name)) is not None and value not in neutral:
            raise ValueError(f"{name}={show(value)}: guided texts are drawn without it; leave it out")


def _check_lengths(body: dict[str, Any], prompts: list[Any], count: int, length: int) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None:
            _read_number(name, body[name], int, 1, length)
    others = {name: value for name, value in body.items() if name not in ("prompt", "messages")}
    size = count * (len(json.dumps(prompts)) + len(prompts) * len(json.dumps(others)))
    if size > MOST_BYTES:
        raise ValueError(
            f"n={count} and {len(prompts)} prompts make requests of {size:,} bytes; at most {MOST_BYTES:,}: send several requests"
        )


def _list_prompts(body: dict[str, Any], engine: EngineSettings, length: int) -> tuple[list[Any], str]:
    """The prompts of a request, each a text or token ids, or its one list of messages; and the name of their field."""
    if "messages" in body:
        return [body["messages"]], "messages"
    prompt = body.get("prompt")
    prompts = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else [prompt]
    for text in prompts[: MOST_SAMPLES + 1]:  # `split_request` refuses more
        if isinstance(text, list):
            if len(text) >= length:
                raise ValueError(f"prompt: {len(text)} tokens, and this server reads {length}, answer included; shorten it")
            wrong = next((token for token in text if type(token) is not int or not 0 <= token < engine.vocab), None)
            if wrong is not None or not text:
                problem = f"{show(wrong)} is no token" if text else "it has no tokens"
                raise ValueError(f"prompt: {problem}; expected ids from 0 to {engine.vocab - 1}")
        elif not isinstance(text, str):
            raise ValueError(f"prompt is {show(text)}; expected a text, token ids, or a list of them")
    return prompts, "prompt"

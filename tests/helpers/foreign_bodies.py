"""Bytes and JSON values changed at random, as by a stranger; and such bodies for a server's routes, with what became of them."""

import json
import random
from functools import reduce

import requests

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


_SETTINGS = {"takeover_tau": 1.5, "takeover_kappa": 2, "takeover_window": 5, "takeover_rate": 0.5, "takeover_sample": 0,
             "takeover_run": "x", "takeover_trace": 1, "takeover_sealed": '{"forced": [1000000000]}', "takeover_seal": "0" * 64,
             "takeover_forced": [10**9], "takeover_id": "x", "takeover_policy": "disagreement"}  # fmt: skip
_DRAWN = {"model": "guided", "temperature": 0.6, "top_p": 0.95, "top_k": 20, "seed": 1, "n": 1, "stop": ["\n\n"], "min_p": 0.0,
          "stop_token_ids": [3], "logprobs": None, "stream": False, "stream_options": None, "logit_bias": {"5": 1.0}, "user": "x",
          "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "ignore_eos": False, "min_tokens": 0,
          "skip_special_tokens": True, "priority": 0, "response_format": {"type": "text"}, "bad_words": ["x"],
          "return_token_ids": False, "use_beam_search": False}  # fmt: skip
_MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "2 + 2 ="}]}]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
# By route what a client may send, of which each body has a part.
ROUTES = {
    "/v1/completions": {"prompt": ["2 + 2 =", "1"], "max_tokens": 2} | _DRAWN | {"echo": False, "suffix": None, "best_of": 1,
        "prompt_logprobs": None, "truncate_prompt_tokens": 5, "allowed_token_ids": [4, 5], "prompt_embeds": None},
    "/v1/chat/completions": {"messages": _MESSAGES, "max_completion_tokens": 2} | _DRAWN | {"top_logprobs": None,
        "tools": [_TOOL], "tool_choice": "none", "chat_template_kwargs": {"enable_thinking": False}, "documents": None,
        "add_generation_prompt": True, "continue_final_message": False, "chat_template": None},
    "/tokenize": {"model": "guided", "prompt": "2 + 2 =", "add_special_tokens": True, "return_token_strs": True},
    "/detokenize": {"model": "guided", "tokens": [4, 5, 6]},
}  # fmt: skip
_NEEDED = ("prompt", "messages", "tokens", "model", "max_tokens", "max_completion_tokens")


def make_body(route: str, seed: int) -> bytes:
    """A body for this route with one or two values replaced, or with damaged bytes; some are sound."""
    rng = random.Random(f"{route} {seed}")
    known = ROUTES[route]
    body = {name: value for name, value in known.items() if name in _NEEDED or rng.random() < 0.2}
    if route.startswith("/v1") and rng.random() < 0.4:
        names = rng.sample(sorted(_SETTINGS), rng.choice((1, 1, 2, 3)))
        body["vllm_xargs"] = {name: _SETTINGS[name] for name in names}
    if rng.random() < 0.2:
        return spoil_bytes(json.dumps(body).encode(), rng)
    return json.dumps(body if rng.random() < 0.1 else spoil_json(body, rng)).encode()


def post(url: str, path: str, body: bytes, **headers: str) -> tuple[int, str]:
    """The status and the answer of a request as it is sent, which need not be JSON."""
    answer = requests.post(f"{url}{path}", body, headers={"Content-Type": "application/json"} | headers, timeout=60)
    return answer.status_code, answer.content.decode()

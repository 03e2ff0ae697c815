"""What vLLM's OpenAI-compatible server does beside its own for a guided pair: middleware on completions and chat completions.

A request becomes requests of one sample each, whose draws are ours: temperature, top_p, top_k and seed ride on `vllm_xargs` as
`takeover_…`, beside what a client gives there (`takeover_tau`, `takeover_kappa`, `takeover_window`, `takeover_rate`,
`takeover_early_tokens`, `takeover_sample`). Without a `takeover_sample`, repeats of one prompt are numbered as they come, anew
for each `takeover_run`. Answers gain a field `takeover`: tokens, takeovers, realized rate.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from uuid import uuid4

import numpy as np

from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.vllm.emission import COLUMNS, TAKEN
from lm_eval_takeover.vllm.settings import PREFIX, EngineSettings, RequestSettings, build_policy

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_PATHS = ("/v1/completions", "/v1/chat/completions")
_DRAWS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": None}  # a client's, by OpenAI's defaults
_RUN, _POLICY = f"{PREFIX}run", f"{PREFIX}policy"  # settings that end here: no worker is told
_WHOLE = 2**30  # more positions than any request has


class TakeoverMiddleware:
    """ASGI middleware, which `vllm serve --middleware` takes by its path."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app
        self._repeats: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("method") != "POST" or scope["path"] not in _PATHS:
            await self.app(scope, receive, send)
            return
        body = await _read(receive)
        client = scope["app"].state.engine_client
        settings = EngineSettings.of(client.model_config.hf_config)
        try:
            asked = self._split(json.loads(body), settings)
        except (TakeoverError, ValueError) as error:
            await _answer(send, 400, {"error": {"message": str(error), "type": "BadRequestError", "code": 400}})
            return
        if asked[0].get("stream"):
            await self._stream(scope, send, client, asked[0])
            return
        answers = await asyncio.gather(*(self._ask(scope, one) for one in asked))
        broken = next(((status, answer) for status, answer in answers if status != 200), None)
        if broken is not None:
            await _answer(send, *broken)
            return
        found = await _count(client, [one["vllm_xargs"][f"{PREFIX}id"] for one in asked], [a for _, a in answers])
        await _answer(send, 200, _merge([answer for _, answer in answers], found))

    # Requests

    def _split(self, body: dict[str, Any], engine: EngineSettings) -> list[dict[str, Any]]:
        """One request for each sample. Raises ArgumentError for settings that the engine cannot honour."""
        given = dict(body.get("vllm_xargs") or {})
        _check_policy(given.pop(_POLICY, None), engine)
        _check_logprobs(body, engine)
        run = given.pop(_RUN, "")
        for name, default in _DRAWS.items():
            value = body.pop(name, None)
            value = default if value is None else value
            if value is not None:
                given.setdefault(PREFIX + name, value)
        given.setdefault(f"{PREFIX}seed", engine.seed)
        given[f"{PREFIX}top_k"] = max(int(given[f"{PREFIX}top_k"]), 0)  # vLLM's -1 is 0 here
        _check(given, build_policy(engine.policy))
        prompts, name = _list_prompts(body)
        count = int(body.pop("n", None) or 1)
        if body.get("stream") and count * len(prompts) > 1:
            raise ValueError("stream=true goes with one prompt and n=1: guided samples are drawn one request each")
        fixed = f"{PREFIX}sample" in given
        asked = []
        for prompt in prompts:
            for repeat in range(count):
                extra = dict(given)
                if fixed:
                    extra[f"{PREFIX}sample"] = int(given[f"{PREFIX}sample"]) + repeat
                else:
                    key = json.dumps([run, prompt])
                    extra[f"{PREFIX}sample"] = self._repeats[key]
                    self._repeats[key] += 1
                extra[f"{PREFIX}id"] = uuid4().hex
                ends = sorted({*(body.get("stop_token_ids") or ()), *engine.ends})
                # vLLM's own draw has one token to choose from.
                asked.append(
                    body | {name: prompt, "n": 1, "temperature": 0, "vllm_xargs": extra, "stop_token_ids": ends}
                )
        return asked

    async def _ask(self, scope: Scope, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The server's answer to a request of one sample: its status and its JSON."""
        parts: list[bytes] = []
        status = 500

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self.app(*_request(scope, body), send)
        return status, json.loads(b"".join(parts) or b"{}")

    async def _stream(self, scope: Scope, send: Send, client: Any, body: dict[str, Any]) -> None:
        """As the server streams it, with one more event before its last, which has `takeover`."""
        request_id = body["vllm_xargs"][f"{PREFIX}id"]
        shows_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        usage: dict[str, Any] = {}

        async def forward(message: MutableMapping[str, Any]) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            events = []
            for event in filter(None, message.get("body", b"").decode().split("\n\n")):
                data = event.removeprefix("data: ")
                if data == "[DONE]":
                    found = await _count(client, [request_id], [{"usage": usage}])
                    events.append("data: " + json.dumps({"object": "takeover", "choices": [], "takeover": found[0]}))
                elif data.startswith("{") and (chunk := json.loads(data)).get("usage") and not chunk.get("choices"):
                    usage.update(chunk["usage"])
                    if not shows_usage:
                        continue
                events.append(event)
            body = "".join(f"{event}\n\n" for event in events).encode()
            if body or not message.get("more_body"):
                await send({**message, "body": body})

        await self.app(*_request(scope, body), forward)


def _check_policy(asked: Any, engine: EngineSettings) -> None:
    if asked is not None and asked != engine.policy["name"]:
        raise ValueError(
            f"{_POLICY}={asked}: this server was started with policy={engine.policy['name']}; start one with policy={asked}"
        )


def _check_logprobs(body: dict[str, Any], engine: EngineSettings) -> None:
    for name in ("logprobs", "top_logprobs"):
        value = body.get(name)
        if engine.block > 1 and value is not None and value is not False:
            raise ValueError(
                f"{name}={value}: this server verifies drafts of {engine.block} tokens, whose log-probabilities are not kept; "
                f"start one with block_size=1"
            )


def _check(given: dict[str, Any], policy: Policy) -> None:
    """Raises ArgumentError for settings of a request that the engine's policy does not read, or that are out of range."""
    settings = RequestSettings.from_extra_args(given)
    settings.choose_policy(policy)
    _ = settings.sampling


def _list_prompts(body: dict[str, Any]) -> tuple[list[Any], str]:
    """The prompts of a request, each a text or token ids, or its one list of messages; and the name of their field."""
    if "messages" in body:
        return [body["messages"]], "messages"
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        return prompt, "prompt"
    return [prompt], "prompt"


def _request(scope: Scope, body: dict[str, Any]) -> tuple[Scope, Receive]:
    """The scope and the body of a request of our own."""
    data = json.dumps(body).encode()
    headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-length"]
    sent = False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal sent
        if sent:  # the client has not gone: nobody reads its body twice
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": data, "more_body": False}

    return {**scope, "headers": [*headers, (b"content-length", str(len(data)).encode())]}, receive


async def _read(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


async def _count(client: Any, ids: list[str], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`takeover` of each answer: what its records, which the workers hand over, say."""
    counts = {
        name: int((answer.get("usage") or {}).get("completion_tokens") or _WHOLE)
        for name, answer in zip(ids, answers, strict=True)
    }
    found: dict[str, Any] = {}
    for part in await client.collective_rpc("take_takeover_records", args=(counts,)):
        found |= {name: one for name, one in part.items() if one is not None}
    rows = [np.frombuffer(found[name][0], np.float32).reshape(-1, COLUMNS) if name in found else None for name in ids]
    return [_summarize(one) for one in rows]


def _summarize(records: Any) -> dict[str, Any]:
    if records is None or not len(records):
        return {"tokens": 0, "takeovers": 0, "realized_rate": 0.0}
    takeovers = int(records[:, TAKEN].sum())
    return {"tokens": len(records), "takeovers": takeovers, "realized_rate": takeovers / len(records)}


def _merge(answers: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, Any]:
    """One answer with the choices of all, in their order; each says its takeovers, the answer those of all."""
    merged = answers[0]
    choices = [choice for answer in answers for choice in answer["choices"]]
    for index, (choice, takeover) in enumerate(zip(choices, found, strict=True)):
        choice["index"], choice["takeover"] = index, takeover
    usages = [answer["usage"] for answer in answers]
    totals = {name: sum(one[name] for one in usages) for name, value in usages[0].items() if isinstance(value, int)}
    tokens, takeovers = (sum(one[name] for one in found) for name in ("tokens", "takeovers"))
    return merged | {
        "choices": choices,
        "usage": usages[0] | totals,
        "takeover": {"tokens": tokens, "takeovers": takeovers, "realized_rate": takeovers / max(tokens, 1)},
    }

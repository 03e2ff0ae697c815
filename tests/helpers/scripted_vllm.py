"""vLLM's server and engine as the middleware sees them, with scripted tokens in place of models; and requests to it.

One request by hand, or many by uvicorn on loopback.
"""

import asyncio
import contextlib
import json
import math
import threading
import time
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
from starlette.responses import JSONResponse, StreamingResponse

from helpers.pairs import POLICIES, TableTokenizer
from lm_eval_takeover.decoding.emission import COLUMNS, REST, SCORE, TAKEN
from lm_eval_takeover.serve.connection import BoundedProtocol
from lm_eval_takeover.serve.server import TakeoverMiddleware
from lm_eval_takeover.vllm.settings import SEALED, EngineSettings, check_params, describe_policy

WORDS = ["Paris", " is", " the", " capital", " of", " France", ".", " London", " a", "</s>"]
ENDS = 9
# By prompt the tokens, and by the position of a takeover what the host drew.
SCRIPTS = {
    "one": ([0, 1, 2, 3, 4, 5, 6, 9], {0: 7, 2: 8}),
    "two": ([7, 1, 8, 3, 6, 9], {}),
    "long": ([1, 2] * 100, dict.fromkeys(range(0, 200, 20), 3)),
}


class ScriptedVllm:
    """An ASGI app. `chunks` are the numbers of tokens of a stream's chunks, over and over."""

    def __init__(self, chunks=(1, 2), api_key=None, block=1, pause=0, model="scripted"):
        self.chunks, self.pause = chunks, pause
        self.records, self.bodies = {}, []
        tokenizer = TableTokenizer(WORDS)
        tokenizer.all_special_ids = [ENDS]
        engine = EngineSettings(policy=describe_policy(POLICIES["disagreement"]), vocab=512, ends=[ENDS], block=block)
        config = SimpleNamespace(model=model, hf_overrides={"takeover": asdict(engine)}, hf_config=SimpleNamespace())
        config.max_model_len, config.dtype = 512, "float32"
        core = SimpleNamespace(call_utility_all_async=self.ask_engines)
        processor = SimpleNamespace(_validate_params=lambda params, tasks: check_params(params))
        own = {"tokenizer": tokenizer, "engine_core": core, "input_processor": processor}
        client = SimpleNamespace(model_config=config, errored=False, **own)
        args = SimpleNamespace(api_key=api_key)
        self.app = SimpleNamespace(state=SimpleNamespace(args=args, engine_client=client))
        self.middleware = TakeoverMiddleware(self)

    async def ask_engines(self, method, asked, timeout, args, named):
        assert (method, asked, timeout, named) == ("collective_rpc", "read_takeover_records", None, None)
        await asyncio.sleep(0.001)
        found = []
        for name, start, stop, last in args[0]:
            rows = self.records.get(name)
            part = None if rows is None else np.array(rows[start:stop], np.float32).tobytes()
            found.append(None if part is None else (part, {"base": 0, "guide": 0}))
            if last:
                self.records.pop(name, None)
        return [[[None] * len(found)], [found]]

    async def __call__(self, scope, receive, send):
        body = json.loads((await receive())["body"])
        self.bodies.append(body)
        if not scope["path"].startswith("/v1"):
            await JSONResponse({})(scope, receive, send)
            return
        if body["prompt"] not in SCRIPTS:
            refused = {"error": {"message": f"no such prompt: {body['prompt']}", "code": 400}}
            await JSONResponse(refused, 400)(scope, receive, send)
            return
        name = json.loads(body["vllm_xargs"][SEALED])["id"]
        tokens, host = SCRIPTS[body["prompt"]]
        tokens = tokens[: body.get("max_tokens", 16)]
        if body.get("stream"):
            stream = self.stream(body, name, tokens, host)
            await StreamingResponse(stream, media_type="text/event-stream")(scope, receive, send)
            return
        self.write(name, tokens, host, 0, len(tokens))
        choice = {"index": 0, "text": tell(tokens), "finish_reason": "stop"} | show_ids(body, tokens, first=True)
        answer = {"id": f"cmpl-{name}", "choices": [choice], "usage": count(tokens)}
        await JSONResponse(answer)(scope, receive, send)

    async def stream(self, body, name, tokens, host):
        place, number = 0, 0
        while place < len(tokens):
            stop = min(place + self.chunks[number % len(self.chunks)], len(tokens))
            self.write(name, tokens, host, place, stop)
            ids = show_ids(body, tokens[place:stop], first=not place)
            choice = {"index": 0, "text": tell(tokens[place:stop])} | ids
            choice["finish_reason"] = "stop" if stop == len(tokens) else None
            event = {"id": f"cmpl-{name}", "object": "text_completion", "choices": [choice]}
            yield f"data: {json.dumps(event)}\n\n"
            place, number = stop, number + 1
            await asyncio.sleep(self.pause)
        usage = {"id": f"cmpl-{name}", "object": "text_completion", "choices": [], "usage": count(tokens)}
        if body["stream_options"]["include_usage"]:
            yield f"data: {json.dumps(usage)}\n\n"
        yield "data: [DONE]\n\n"

    def write(self, name, tokens, host, start, stop):
        rows = self.records.setdefault(name, [])
        for place in range(start, stop):
            row = np.full(COLUMNS, math.nan)
            row[SCORE], row[TAKEN] = place / 8, place in host
            row[REST + 4] = host.get(place, tokens[place])
            rows.append(row)


def tell(tokens):
    return "".join(WORDS[token] for token in tokens if token != ENDS)


def count(tokens):
    return {"prompt_tokens": 3, "completion_tokens": len(tokens), "total_tokens": 3 + len(tokens)}


def show_ids(body, tokens, first):
    """As vLLM: the fields are there, and have values where they are asked for."""
    shown = body.get("return_token_ids")
    return {"token_ids": tokens if shown else None, "prompt_token_ids": [1, 2, 3] if shown and first else None}


async def talk(app, body, *, leaves_after=None, method="POST", path="/v1/completions", headers=(), whole=False):
    """Status and body of one request; the client leaves after so many messages. `whole` gives the headers, too.

    `app.read` says then whether the body was read.
    """
    sent, gone = [], asyncio.Event()
    app.read = False

    async def receive():
        if not app.read:
            app.read = True
            return {"type": "http.request", "body": json.dumps(body).encode()}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if len(sent) == leaves_after:
            gone.set()

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers), "query_string": b"", "app": app.app}
    await app.middleware(scope, receive, send)
    status = sent[0]["status"] if sent else None
    assert [message["type"] for message in sent[1:]] == ["http.response.body"] * (len(sent) - 1)
    data = b"".join(message["body"] for message in sent[1:])
    return (status, data, dict(sent[0]["headers"])) if whole else (status, data)


@contextlib.contextmanager
def serve(app):
    """The address of a server for a scripted app."""
    import uvicorn

    async def run(scope, receive, send):
        await app.middleware(scope | {"app": app.app}, receive, send)

    server = uvicorn.Server(uvicorn.Config(run, port=0, log_level="error", lifespan="off", http=BoundedProtocol))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()

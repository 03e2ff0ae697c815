"""The server's middleware before a scripted engine: keys, routes and internal fields."""

import asyncio
import socket

import pytest
from helpers.asgi import serve, talk
from helpers.foreign_bodies import post
from helpers.scripted_vllm import ScriptedVllm

from lm_eval_takeover.vllm.settings import CLIENT, PREFIX, RequestSettings

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own
INTERNAL = [*(set(RequestSettings().__slots__) - set(CLIENT)), "sealed", "seal"]


def ask(app, path, body, headers=()):
    return asyncio.run(talk(app, body, path=path, headers=headers))[0]


@pytest.mark.parametrize(
    ("key", "path", "status"),
    [
        (None, "/v1/completions", 401),
        ("wrong", "/v1/chat/completions", 401),
        (None, "/tokenize", 401),
        (None, "/invocations", 404),
        ("right", "/v1/completions", 400),
    ],
)
def test_the_key_is_asked_for_before_the_body_is_read(key, path, status):
    app = ScriptedVllm(api_key=["right"])
    assert ask(app, path, None, [(b"authorization", f"Bearer {key}".encode())] if key else ()) == status
    assert app.read == (status == 400)


@pytest.mark.parametrize("block", [1, 4])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_no_route_takes_an_internal_field(path, block):
    app = ScriptedVllm(block=block)
    for name in INTERNAL:
        body = {"prompt": "2", "messages": [{"role": "user", "content": "2"}], "vllm_xargs": {f"{PREFIX}{name}": [1]}}
        assert (ask(app, path, body), app.bodies) == (400, []), name


@pytest.mark.parametrize(
    "path",
    ["/invocations", "/v1/responses", "/v1/messages", "/inference/v1/generate", "/v1/completions/", "/v1/completions/render",
     "/v1/chat/completions/batch", "/V1/completions", "//v1/completions", "/generative_scoring", "/score", "/rerank", "/pooling",
     "/collective_rpc", "/v1/load_lora_adapter", "/sleep", "/reset_prefix_cache", "/update_weights", ""],
)  # fmt: skip
def test_what_changes_anything_elsewhere_is_refused_unread(path):
    app = ScriptedVllm(block=4)
    assert (ask(app, path, {}), app.read, app.bodies) == (404, False, [])


def test_a_body_that_does_not_arrive_is_given_up_and_others_are_answered(monkeypatch):
    monkeypatch.setattr("lm_eval_takeover.serve.server._BODY_WITHIN", 1.0)
    with serve(ScriptedVllm()) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"prompt": "o')
            assert post(url, "v1/completions", b'{"prompt": "one"}')[0] == 200
            slow.settimeout(30)
            answer = "".join(iter(lambda: slow.recv(1).decode(), "}"))
    assert answer.startswith("HTTP/1.1 408") and "the body did not arrive within 1 seconds" in answer

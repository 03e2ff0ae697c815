"""The server's middleware before a scripted engine: keys, routes and internal fields."""

import asyncio
import socket

import pytest
from helpers.asgi import serve, talk
from helpers.foreign_bodies import post
from helpers.scripted_vllm import ScriptedVllm

from lm_eval_takeover.serve.client_request import CLIENT
from lm_eval_takeover.vllm.settings import PREFIX, RequestSettings

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
            slow.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"prompt": "o')
            assert post(url, "v1/completions", b'{"prompt": "one"}')[0] == 200
            slow.settimeout(30)
            answer = "".join(iter(lambda: slow.recv(1).decode(), "}"))
    assert answer.startswith("HTTP/1.1 408") and "the body did not arrive within 1 seconds" in answer


@pytest.mark.parametrize(
    ("host", "key", "status"),
    [
        ("127.0.0.1:8000", None, 400),
        ("[::1]:8000", None, 400),
        ("localhost", None, 400),
        ("evil.example", None, 403),
        ("127.0.0.1.evil.example:8000", None, 403),
        ("[evil.example]", None, 403),
        ("proxy.example", "right", 400),
    ],
)
def test_a_server_without_a_key_answers_to_no_foreign_name(host, key, status):
    app = ScriptedVllm(api_key=[key] if key else None)
    headers = [(b"host", host.encode()), *([(b"authorization", f"Bearer {key}".encode())] if key else [])]
    assert ask(app, "/v1/completions", None, headers) == status
    if status == 403:
        refused = [asyncio.run(talk(app, None, method="GET", path=path, headers=headers))[0] for path in ("/", "/metrics")]
        assert refused == [403, 403] and app.bodies == []


@pytest.mark.parametrize("field", ["best_of", "lora", "length_penalty", "max_token"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_field_that_nothing_reads_is_refused(field, path):
    app = ScriptedVllm()
    asked = {"messages": [{"role": "user", "content": "2"}]} if "chat" in path else {"prompt": "one"}
    assert (ask(app, path, asked | {field: 5}), app.bodies) == (400, [])


def test_fields_that_change_no_text_are_taken():
    assert ask(ScriptedVllm(), "/v1/completions", {"prompt": "one", "user": "me", "store": False, "length_penalty": 1.0}) == 200


def test_a_connection_without_the_end_of_its_headers_is_closed(monkeypatch):
    monkeypatch.setattr("lm_eval_takeover.serve.server._HEADERS_WITHIN", 0.5)
    asked = b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n\r\n{"prompt": "one"}'
    with serve(ScriptedVllm()) as url:
        for before in (b"", asked):  # the first request of a connection, and a later one
            with socket.create_connection(("127.0.0.1", int(url.rstrip("/").rpartition(":")[2])), timeout=20) as client:
                client.sendall(before)
                assert not before or client.recv(4096).startswith(b"HTTP/1.1 200")
                client.sendall(asked[:30])
                while client.recv(4096):
                    pass  # the rest of the answer; then the server closes the connection
        assert post(url, "v1/completions", b'{"prompt": "one"}')[0] == 200

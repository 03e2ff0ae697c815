"""The server's middleware before a scripted engine: keys, routes and fields, answers and streams, and what ends one.

And its page, in a real browser.
"""

import asyncio
import json
import re
import socket
from contextlib import suppress

import pytest
from helpers.foreign_bodies import ROUTES, post
from helpers.scripted_vllm import SCRIPTS, ScriptedVllm, serve, talk, tell
from prometheus_client import REGISTRY

from lm_eval_takeover.demo import DEMO, calibration_prompts
from lm_eval_takeover.serve import connection, server
from lm_eval_takeover.serve.client_request import MOST_BYTES

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own
TRACED = {"vllm_xargs": {"takeover_trace": 1}}


def ask_for(app, path, body, headers=()):
    return asyncio.run(talk(app, body, path=path, headers=headers))[0]


def bearing(key):
    return [(b"authorization", f"Bearer {key}".encode())] if key else []


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
    assert ask_for(app, path, None, bearing(key)) == status
    assert app.read == (status == 400)


@pytest.mark.parametrize("path", ["/version", "/docs", "/openapi.json", "/load", "/ping"])
def test_with_a_key_every_page_asks_for_it_but_three(path):
    asked = [(path, None), (path, "wrong"), (path, "right"), ("/health", None), ("/metrics", None), ("/", None)]
    app = ScriptedVllm(api_key=["right"])
    statuses = [asyncio.run(talk(app, {}, method="GET", path=where, headers=bearing(key)))[0] for where, key in asked]
    assert statuses == [401, 401, 200, 200, 200, 200]


@pytest.mark.parametrize(
    "path",
    ["/invocations", "/v1/responses", "/v1/completions/", "/v1/completions/render", "/V1/completions", "//v1/completions",
     "/score", "/collective_rpc", "/v1/load_lora_adapter", "/sleep", ""],
)  # fmt: skip
def test_what_changes_anything_elsewhere_is_refused_unread(path):
    app = ScriptedVllm(block=4)
    assert (ask_for(app, path, {}), app.read, app.bodies) == (404, False, [])


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_has_a_bound_on_its_body(route):
    app = ScriptedVllm()
    assert (ask_for(app, route, {"prompt": "x" * MOST_BYTES}), app.bodies) == (413, [])
    helper = not route.startswith("/v1")  # vLLM's own, which read a text of any length
    assert (ask_for(app, route, {"prompt": "x" * 100_000}), app.bodies == []) == (413 if helper else 400, helper)
    assert not helper or (ask_for(app, route, {"prompt": "x" * 50_000}), len(app.bodies)) == (200, 1)


def test_a_body_that_does_not_arrive_is_given_up_and_others_are_answered(monkeypatch):
    monkeypatch.setattr(server, "_BODY_WITHIN", 0.5)
    with serve(ScriptedVllm()) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"prompt": "o')
            assert post(url, "v1/completions", b'{"prompt": "one"}')[0] == 200
            slow.settimeout(30)
            answer = "".join(iter(lambda: slow.recv(1).decode(), "}"))
    assert answer.startswith("HTTP/1.1 408") and "the body did not arrive within 0.5 seconds" in answer


@pytest.mark.parametrize(
    ("host", "key", "status"),
    [
        ("127.0.0.1:8000", None, 400),
        ("[::1]:8000", None, 400),
        ("localhost", None, 400),
        ("evil.example", None, 403),
        ("127.0.0.1.evil.example:8000", None, 403),
        ("[evil.example]", None, 403),
        ("[::1]x", None, 403),
        ("127.0.0.1:80.evil.example", None, 403),
        ("proxy.example", "right", 400),
    ],
)
def test_a_server_without_a_key_answers_to_no_foreign_name(host, key, status):
    app = ScriptedVllm(api_key=[key] if key else None)
    headers = [(b"host", host.encode()), *bearing(key)]
    assert ask_for(app, "/v1/completions", None, headers) == status
    if status == 403:
        refused = [asyncio.run(talk(app, None, method="GET", path=path, headers=headers))[0] for path in ("/", "/metrics")]
        assert refused == [403, 403] and app.bodies == []


@pytest.mark.parametrize("field", ["best_of", "lora", "length_penalty", "max_token"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_field_that_nothing_reads_is_refused(field, path):
    app = ScriptedVllm()
    asked = {"messages": [{"role": "user", "content": "2"}]} if "chat" in path else {"prompt": "one"}
    assert (ask_for(app, path, asked | {field: 5}), app.bodies) == (400, [])
    for stream in (True, False):  # vLLM itself would begin a stream
        status, data = asyncio.run(talk(app, asked | {"min_tokens": 3, "stream": stream}, path=path))
        assert (status, app.bodies) == (400, []) and "min_tokens: guided texts are drawn without it" in data.decode()
    if "chat" not in path:  # these change no text
        assert ask_for(app, path, asked | {"user": "me", "store": False, "length_penalty": 1.0}) == 200


def test_a_connection_without_the_end_of_its_headers_is_closed(monkeypatch):
    monkeypatch.setattr(connection, "_HEADERS_WITHIN", 0.5)
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


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
CHUNK = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"a: " + b"x" * 2**20,
        HEAD + b"a: b\r\n" * 2**17,
        HEAD + b"a: " + b"x" * 2**16 + b"\r\nConnection: close\r\n\r\n",
        b"GET /" + b"x" * 2**20,
        b"GET /" + b"x" * 2**16 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        CHUNK + b"a: b\r\n" * 2**17,
    ],
    ids=["one header", "many", "a whole one", "path", "a whole path", "trailers"],
)
def test_headers_paths_and_trailers_have_a_bound_before_the_key_is_checked(sent):
    with serve(ScriptedVllm(api_key=["right"])) as url:
        port = int(url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(sent)
            # Trailers come behind headers without a key, which may be refused before.
            assert client.recv(2**16)[:12] in {b"HTTP/1.1 431", b"HTTP/1.1 401" if sent.startswith(CHUNK) else b"HTTP/1.1 431"}
            client.settimeout(60)
            with suppress(ConnectionError):  # the connection ends, however much was sent
                while client.recv(2**16):
                    pass
        assert post(url, "v1/completions", b'{"prompt": "one"}', Authorization="Bearer right")[0] == 200


def read_events(body, app=None):
    """The chunks of a stream before the event with `takeover`, and that event's."""
    status, data = asyncio.run(talk(app or ScriptedVllm(), body | {"stream": True}))
    assert status == 200, data
    *events, done, end = data.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    *chunks, last = (json.loads(event.removeprefix(b"data: ")) for event in events)
    assert (last["object"], last["choices"]) == ("takeover", [])
    return chunks, last["takeover"]


@pytest.mark.parametrize("chunks", [(1,), (1, 2), (5,), (3, 0, 1)])
def test_each_chunk_of_a_traced_stream_tells_of_its_tokens(chunks):
    events, told = read_events({"prompt": "one"} | TRACED, ScriptedVllm(chunks))
    parts = [event["takeover"] for event in events]
    assert [part["start"] for part in parts] == [sum(part["tokens"] for part in parts[:i]) for i in range(len(parts))]
    hosts = [{"id": 7, "text": " London"}, {"id": 8, "text": " a"}]
    for name, expected in (("positions", [0, 2]), ("host_tokens", hosts)):
        assert [one for part in parts for one in part[name]] == told[name] == expected
    assert all(part["start"] <= at < part["start"] + part["tokens"] for part in parts for at in part["positions"])
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == "".join(told["trace"]["text"]) == tell(SCRIPTS["one"][0])
    assert not any(event["choices"][0].get("token_ids") for event in events)


def test_what_is_not_traced_says_its_takeovers_at_the_end():
    events, told = read_events({"prompt": "one"})
    _, data = asyncio.run(talk(ScriptedVllm(), {"prompt": "one"}))
    assert told == json.loads(data)["takeover"] == {"tokens": 8, "takeovers": 2, "realized_rate": 0.25}
    assert not any("takeover" in event or "usage" in event for event in events)


def test_samples_and_prompts_are_streamed_as_one():
    body = {"prompt": ["one", "two"], "n": 2, "stream_options": {"include_usage": True}, "return_token_ids": True}
    *events, usage = (found := read_events(body | TRACED))[0]
    texts, ids = {}, {}
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        ids[choice["index"]] = ids.get(choice["index"], []) + choice["token_ids"]
    expected = [SCRIPTS[name][0] for name in ("one", "one", "two", "two")]
    assert [(ids[index], texts[index]) for index in range(4)] == [(tokens, tell(tokens)) for tokens in expected]
    assert len({event["id"] for event in (*events, usage)}) == 1
    assert len({tuple(event["choices"][0]["index"] for event in events[i : i + 4]) for i in range(8)}) > 1  # they mix
    sums, told = {"prompt_tokens": 12, "completion_tokens": 28, "total_tokens": 40}, found[1]
    assert (usage["choices"], usage["usage"]) == ([], sums)
    assert (told["tokens"], told["takeovers"]) == (28, 4)
    assert [one["positions"] for one in told["choices"]] == [[0, 2], [0, 2], [], []]


def test_a_sample_that_is_refused_ends_all_with_one_answer():
    for stream in (True, False):
        status, data = asyncio.run(talk(ScriptedVllm(), {"prompt": ["long", "none", "one"], "stream": stream}))
        assert (status, json.loads(data)["error"]["message"]) == (400, "no such prompt: none")


def test_tokens_takeovers_passes_and_requests_are_counted():
    names, get = ("tokens", "takeovers", "base_passes", "guide_passes"), REGISTRY.get_sample_value

    def read():
        counts = {name: get(f"takeover:{name}_total") for name in names}
        counts |= {code: get("takeover:requests_total", {"status": code}) for code in ("200", "400", "499")}
        return {name: value or 0 for name, value in counts.items()}

    before = read()
    for stream in (True, False):
        asyncio.run(talk(ScriptedVllm(), {"prompt": ["one", "two"], "stream": stream}))
        asyncio.run(talk(ScriptedVllm(), {"prompt": "one", "n": -1, "stream": stream}))
    asyncio.run(talk(ScriptedVllm(pause=0.01), {"prompt": "long", "max_tokens": 200, "stream": True}, leaves_after=8))
    counted = {name: value - before[name] for name, value in read().items()}
    assert counted == dict(zip((*names, "200", "400", "499"), (28, 4, 24, 24, 2, 2, 1), strict=True))


MARKS = "[...document.querySelectorAll('#answer mark')].map((node) => node.textContent)"
SEND = """document.querySelector('#prompt').value = '{}'; document.querySelector('#send').click()"""
DONE = "!document.querySelector('#send').disabled"
TEXT = "document.querySelector('#answer').textContent"


@pytest.mark.parametrize("keys", [None, ["secret"]])
def test_the_page_loads_nothing_and_asks_for_a_key_where_there_is_one(keys):
    for method in ("GET", "HEAD"):
        status, data, headers = asyncio.run(talk(ScriptedVllm(api_key=keys), None, method=method, path="/", whole=True))
        assert status == 200
    text, policy = data.decode(), headers[b"content-security-policy"].decode()
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert policy.endswith("form-action 'none'; connect-src 'self'; frame-ancestors 'none'")
    assert not re.search(r"""(?:src|href)=|https?:|\$\w""", re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL))
    assert ("<label hidden>Key" in text) == (keys is None)
    assert "secret" not in text and "policy=disagreement, tau=" in text


@pytest.mark.parametrize(("model", "prompt"), [(str(DEMO["guide"]), calibration_prompts()[0]), ("other", "Problem: What is")])
def test_the_page_has_a_prompt_of_its_models_to_try(model, prompt):
    _, data = asyncio.run(talk(ScriptedVllm(model=model), None, method="GET", path="/"))
    assert re.search(r"<textarea[^>]*>([^<]*)</textarea>", data.decode())[1].startswith(prompt)


@pytest.fixture
def page(browser, request):
    """The browser on the page of a scripted server, which has the keys that a test gives."""
    with serve(ScriptedVllm(chunks=(1, 3), pause=0.002, api_key=getattr(request, "param", None))) as url:
        browser.call("Emulation.setFocusEmulationEnabled", enabled=True)
        browser.look(1280, 900, "light")
        browser.open(url)
        browser.messages.clear()
        yield browser
        browser.open("about:blank")


def test_an_answer_is_streamed_and_the_guides_tokens_are_marked(page):
    page.evaluate(SEND.format("one"))
    page.wait_for(DONE)
    assert page.evaluate(TEXT) == tell(SCRIPTS["one"][0])
    assert page.evaluate(MARKS) == ["Paris", " the"]
    assert page.evaluate("document.querySelector('#status').textContent") == "8 tokens, 2 takeovers (25.0 %)."
    facts = []
    for act in ("focus()", "dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"):
        for number in (0, 1):
            page.evaluate(f"document.querySelectorAll('#answer mark')[{number}].{act}")
            facts.append(page.evaluate("document.querySelector('#fact').textContent"))
    assert facts[0] == 'The guide wrote token 0 "Paris"; the base would have written " London"; score 0.00.'
    assert facts[1] == 'The guide wrote token 2 " the"; the base would have written " a"; score 0.25.'
    assert facts[:2] == facts[2:]
    assert page.evaluate("document.querySelector('#answer mark').title") == facts[0]
    page.press("Tab")
    assert page.messages == []


def test_an_answer_is_marked_while_it_comes_and_can_be_stopped(page):
    page.evaluate("document.querySelector('#max-tokens').value = 200")
    page.evaluate(SEND.format("long"))
    page.wait_for(f"{MARKS}.length")
    page.evaluate("document.querySelector('#stop').click()")
    page.wait_for(DONE)
    assert page.evaluate("document.querySelector('#status').textContent").endswith("%). Stopped.")
    assert 0 < len(page.evaluate(TEXT)) < len(tell(SCRIPTS["long"][0]))
    assert page.messages == []


def test_a_refusal_is_said(page):
    page.evaluate(SEND.format("<img src=x onerror=alert(1)>"))
    page.wait_for("!document.querySelector('#error').hidden")
    said = page.evaluate("document.querySelector('#error').textContent")
    assert said == "no such prompt: <img src=x onerror=alert(1)>"
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    page.evaluate(SEND.format("one"))
    page.wait_for(f"{DONE} && {MARKS}.length")
    assert page.evaluate("document.querySelector('#error').hidden")


@pytest.mark.parametrize("page", [["secret"]], indirect=True)
def test_the_key_goes_with_the_prompt(page, monkeypatch):
    monkeypatch.setattr(server, "_has_key", lambda scope: (b"authorization", b"Bearer secret") in scope["headers"])
    page.evaluate(SEND.format("one"))
    page.wait_for("document.querySelector('#error').textContent == 'Unauthorized'")
    page.evaluate("document.querySelector('#key').value = 'secret'")
    page.evaluate(SEND.format("one"))
    page.wait_for(f"{DONE} && {MARKS}.length")

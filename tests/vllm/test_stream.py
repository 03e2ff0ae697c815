"""Answers and streams of scripted samples: who wrote each token, several samples in one stream, and what ends one."""

import asyncio
import json

import pytest
from helpers.asgi import talk
from helpers.scripted_vllm import SCRIPTS, ScriptedVllm, tell

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own
TRACED = {"vllm_xargs": {"takeover_trace": 1}}
HOSTS = [{"id": 7, "text": " London"}, {"id": 8, "text": " a"}]


def ask(body, app=None):
    status, data = asyncio.run(talk(app or ScriptedVllm(), body))
    assert status == 200, data
    return json.loads(data)


def read_events(body, app=None):
    """The chunks of a stream before the event with `takeover`, and that event's."""
    status, data = asyncio.run(talk(app or ScriptedVllm(), body | {"stream": True}))
    assert status == 200, data
    *events, done, end = data.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    *chunks, last = (json.loads(event.removeprefix(b"data: ")) for event in events)
    assert (last["object"], last["choices"]) == ("takeover", [])
    return chunks, last["takeover"]


def test_a_trace_tells_who_wrote_each_token_and_what_stood_in_its_place():
    answer = ask({"prompt": "one"} | TRACED)
    assert (told := answer["takeover"]) == answer["choices"][0]["takeover"]
    assert (told["positions"], told["host_tokens"]) == ([0, 2], HOSTS)
    assert (told["tokens"], told["takeovers"], told["realized_rate"]) == (8, 2, 0.25)
    assert told["trace"]["takeover"] == [place in (0, 2) for place in range(8)]
    assert told["trace"]["score"] == [place / 8 for place in range(8)]
    assert "".join(told["trace"]["text"]) == answer["choices"][0]["text"] == tell(SCRIPTS["one"][0])
    assert "token_ids" not in {name for name, value in answer["choices"][0].items() if value is not None}


@pytest.mark.parametrize("chunks", [(1,), (1, 2), (5,), (3, 0, 1)])
def test_each_chunk_of_a_traced_stream_tells_of_its_tokens(chunks):
    events, told = read_events({"prompt": "one"} | TRACED, ScriptedVllm(chunks))
    parts = [event["takeover"] for event in events]
    assert [part["start"] for part in parts] == [sum(part["tokens"] for part in parts[:i]) for i in range(len(parts))]
    for name, expected in (("positions", [0, 2]), ("host_tokens", HOSTS)):
        assert [one for part in parts for one in part[name]] == told[name] == expected
    assert all(part["start"] <= at < part["start"] + part["tokens"] for part in parts for at in part["positions"])
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == "".join(told["trace"]["text"]) == tell(SCRIPTS["one"][0])
    assert not any(event["choices"][0].get("token_ids") for event in events)


def test_what_is_not_traced_says_its_takeovers_at_the_end():
    events, told = read_events({"prompt": "one"}, app := ScriptedVllm())
    assert told == ask({"prompt": "one"})["takeover"] == {"tokens": 8, "takeovers": 2, "realized_rate": 0.25}
    assert not any("takeover" in event or "usage" in event for event in events)
    assert len(app.calls) == 1


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


def test_many_wait_for_few_calls():
    app = ScriptedVllm(chunks=(1,))

    async def all_at_once():
        body = {"prompt": "one", "stream": True} | TRACED
        return await asyncio.gather(*(talk(app, body) for _ in range(50)))

    answers = asyncio.run(all_at_once())
    assert {status for status, _ in answers} == {200}
    assert len({data.rpartition(b"takeover")[2] for _, data in answers}) == 1
    assert sum(map(len, app.calls)) == 50 * 9 and len(app.calls) < 50
    assert not app.records


def test_a_dead_engine_is_an_error_and_nobody_waits():
    with pytest.raises(RuntimeError, match="the engine is dead"):
        asyncio.run(asyncio.wait_for(talk(ScriptedVllm(dead=RuntimeError("the engine is dead")), {"prompt": "one"}), 5))


def test_nobody_waits_for_an_engine_that_was_killed_and_answers_nothing():
    app = ScriptedVllm()
    client = app.app.state.engine_client

    async def be_silent(*_):
        client.errored = True
        await asyncio.Event().wait()

    client.engine_core.call_utility_all_async = be_silent
    for stream in (False, True):
        client.errored = False
        status, data = asyncio.run(asyncio.wait_for(talk(app, {"prompt": "one", "stream": stream} | TRACED), 5))
        first, *others = data.split(b"\n\n")
        assert json.loads(first.removeprefix(b"data: "))["error"]["message"].startswith("an engine has ended")
        assert (status, others) == ((200, [b"data: [DONE]", b""]) if stream else (503, []))


def test_tokens_takeovers_passes_and_requests_are_counted():
    from prometheus_client import REGISTRY

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

"""The server's middleware alone, as it stands before every engine: nothing is behind it, and no vLLM is needed."""

import asyncio
import json
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from helpers.pairs import POLICIES

from lm_eval_takeover.vllm.server import TakeoverMiddleware
from lm_eval_takeover.vllm.settings import CLIENT, PREFIX, EngineSettings, RequestSettings, describe_policy

GENERATING = ("/v1/completions", "/v1/chat/completions")
INTERNAL = [*(set(RequestSettings().__slots__) - set(CLIENT)), "sealed", "seal"]


def talk(path, body, headers=(), api_key=None, block=1):
    """What the middleware sends, whether it has read a body, and how often it asked vLLM."""
    read, sent, inner = [], [], []

    async def receive():
        read.append(1)
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message)

    async def app(*_):
        inner.append(1)

    state = SimpleNamespace(args=SimpleNamespace(api_key=api_key), engine_client=MagicMock())
    engine = EngineSettings(policy=describe_policy(POLICIES["disagreement"]), vocab=512, ends=[], block=block)
    state.engine_client.model_config.hf_overrides = {"takeover": engine.to_plain()}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": list(headers),
        "app": SimpleNamespace(state=state),
    }
    asyncio.run(TakeoverMiddleware(app)(scope, receive, send))
    return sent, bool(read), len(inner)


@pytest.mark.filterwarnings("ignore")  # vLLM's own
@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ([], "/v1/completions", 401),
        ([(b"authorization", b"Bearer wrong")], "/v1/chat/completions", 401),
        ([], "/tokenize", 401),
        ([], "/invocations", 404),
        ([(b"authorization", b"Bearer right")], "/v1/completions", 400),
    ],
)
def test_the_key_is_asked_for_before_the_body_is_read(headers, path, status):
    pytest.importorskip("vllm.entrypoints", reason="the key is checked by vLLM's own function")
    sent, read, _ = talk(path, b"null", headers, api_key=["right"])
    assert sent[0]["status"] == status
    assert read == (status == 400)


@pytest.mark.parametrize("block", [1, 4])
def test_no_route_takes_an_internal_field(block):
    """An engine with drafts has no check of its own behind the middleware: vLLM allows no logits processor beside drafts."""
    for name in INTERNAL:
        for path in GENERATING:
            xargs = {f"{PREFIX}{name}": "disagreements" if name == "policy" else [1]}
            body = json.dumps({"prompt": "2", "messages": [{"role": "user", "content": "2"}], "vllm_xargs": xargs})
            sent, _, inner = talk(path, body.encode(), block=block)
            assert (sent[0]["status"], inner) == (400, 0), (name, path, sent)


@pytest.mark.parametrize(
    "path",
    ["/invocations", "/v1/responses", "/v1/messages", "/inference/v1/generate", "/v1/completions/", "/v1/completions/render",
     "/v1/chat/completions/batch", "/V1/completions", "//v1/completions", "/generative_scoring", "/score", "/rerank", "/pooling",
     "/collective_rpc", "/v1/load_lora_adapter", "/sleep", "/reset_prefix_cache", "/update_weights", ""],
)  # fmt: skip
def test_what_changes_anything_elsewhere_is_refused_unread(path):
    sent, read, inner = talk(path, b"{}", block=4)
    assert (sent[0]["status"], read, inner) == (404, False, 0)

"""What is counted beside vLLM's own counters, and what /health says of a dead engine; vLLM's code is here, no server."""

import asyncio
from types import SimpleNamespace

import pytest
from helpers.asgi import talk
from helpers.scripted_vllm import ScriptedVllm

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own


def test_tokens_takeovers_passes_and_requests_are_counted():
    registry = pytest.importorskip("prometheus_client", reason="vLLM brings it").REGISTRY

    def read():
        names = ("tokens", "takeovers", "base_passes", "guide_passes")
        counts = {name: registry.get_sample_value(f"takeover:{name}_total") for name in names}
        statuses = {
            code: registry.get_sample_value("takeover:requests_total", {"status": code})
            for code in ("200", "400", "499")
        }
        return {name: value or 0 for name, value in (counts | statuses).items()}

    before = read()
    for stream in (True, False):
        asyncio.run(talk(ScriptedVllm(), {"prompt": ["one", "two"], "stream": stream}))
        asyncio.run(talk(ScriptedVllm(), {"prompt": "one", "n": -1, "stream": stream}))
    asyncio.run(talk(ScriptedVllm(pause=0.01), {"prompt": "long", "max_tokens": 200, "stream": True}, leaves_after=8))
    counted = {name: value - before[name] for name, value in read().items()}
    passes = 2 * (7 + 5)
    assert counted == {
        "tokens": 28,
        "takeovers": 4,
        "base_passes": passes,
        "guide_passes": passes,
        "200": 2,
        "400": 2,
        "499": 1,
    }


def test_a_server_whose_engine_is_dead_is_not_healthy():
    health = pytest.importorskip("vllm.entrypoints.serve.instrumentator.health", reason="the route is vLLM's")
    from fastapi import FastAPI
    from vllm.v1.engine.exceptions import EngineDeadError

    from lm_eval_takeover.vllm.server import TakeoverMiddleware

    async def die():
        raise EngineDeadError

    async def live():
        pass

    for check, status in ((live, 200), (die, 503)):
        app = FastAPI()
        app.include_router(health.router)
        app.add_middleware(TakeoverMiddleware)
        app.state.engine_client = SimpleNamespace(check_health=check)
        sent = asyncio.run(talk(SimpleNamespace(middleware=app, app=app), None, method="GET", path="/health"))
        assert sent[0] == status

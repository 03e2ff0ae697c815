"""A real server process on loopback with two engines, the real `openai` client, and lm-eval's own client against it."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import requests
from helpers.demo_runs import evaluate, run_demo
from helpers.foreign_bodies import ROUTES, make_body, post
from helpers.pairs import POLICIES, ROOT, SAMPLED
from helpers.processes import wait_until

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import calibration_prompts
from lm_eval_takeover.method.request import COUNTED, Request
from lm_eval_takeover.vllm.backend import VllmBackend

pytestmark = pytest.mark.filterwarnings("ignore")  # the client's
PLACE = ["doc_id", "sample", "position"]
KEY = "secret"
KEYED = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def gate(demo_folders):
    """The model arguments, for the server and for the transformers engine."""
    pair = ",".join(f"{role}={folder}" for role, folder in demo_folders.items())
    return f"{pair},policy=disagreement,tau=1.5,kappa=2.0,dtype=float32"


@pytest.fixture(scope="module")
def url(gate):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = f"{gate},data_parallel_size=2,block_size=1"
    words = ["-m", "lm_eval_takeover.cli", "serve", "--model_args", arguments, "--port", str(port)]
    engine = ["--enforce-eager", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(2**28), "--api-key", KEY]
    engine += ["--distributed-executor-backend", "uni"]  # no process more for each engine
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    server = subprocess.Popen([sys.executable, *words, "--", *engine], env=environment, cwd=ROOT, stdout=sys.stderr)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _is_healthy(address) or time.sleep(1), server, seconds=400)
        yield address
        _end_engine(server, address)
    finally:
        started = [*psutil.Process(server.pid).children(recursive=True)] if server.poll() is None else []
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            for one in (server, *started):
                one.kill()
            server.wait()


def _end_engine(server, address):
    """Kill one of the engines at work: nobody waits for it, the server does not call itself healthy any more, and ends."""
    engines = [one for one in psutil.Process(server.pid).children(recursive=True) if "EngineCore" in "".join(one.cmdline())]
    assert len(engines) == 2
    asked = {"prompt": "1 2 3", "max_tokens": 1500, "ignore_eos": True}
    streamed = asked | {"stream": True, "vllm_xargs": {"takeover_trace": 1}}
    with ThreadPoolExecutor() as clients:
        bodies = [json.dumps(body).encode() for body in (asked, streamed)]
        answers = [clients.submit(post, address, "/v1/completions", body, **KEYED) for body in bodies]
        time.sleep(0.5)
        engines[1].kill()
        (status, _), (_, events) = (one.result(60) for one in answers)
    assert (status >= 500, '"error"' in events) == (True, True)
    assert not _is_healthy(address)
    server.wait(60)


def _is_healthy(address):
    try:
        return requests.get(f"{address}/health", timeout=5).ok
    except OSError:  # nobody listens
        return False


@pytest.fixture(scope="module")
def client(url):
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(open_hf):
    """The texts of three samples, by the transformers engine."""
    backend = open_hf()
    prompt = calibration_prompts()[0]
    ids = tuple(backend.pair.encode(prompt))
    asked = [Request(ids, sample, 40, SAMPLED) for sample in range(3)]
    backend.policy = POLICIES["disagreement"]
    done = dict(backend.generate(asked, seed=7, rows=4))
    texts = [backend.pair.tokenizer.decode(done[i].tokens, skip_special_tokens=True) for i in range(3)]
    return prompt, texts, [done[i] for i in range(3)]


def ask(client, prompt, **more):
    options = {"temperature": 0.6, "top_p": 0.95, "seed": 7, "max_tokens": 40} | more
    return client.completions.create(model="guided", prompt=prompt, **options)


def test_samples_of_one_request_are_those_of_the_transformers_engine(client, expected):
    prompt, texts, done = expected
    answer = ask(client, prompt, n=3, extra_body={"vllm_xargs": {"takeover_run": "n"}})
    assert [choice.text for choice in answer.choices] == texts
    assert [choice.takeover["takeovers"] for choice in answer.choices] == [one.takeovers for one in done]
    tokens = sum(len(one.tokens) for one in done)
    assert answer.takeover["tokens"] == answer.usage.completion_tokens == tokens
    assert answer.takeover["realized_rate"] == pytest.approx(sum(one.takeovers for one in done) / tokens)


def test_samples_are_streamed_together_and_say_who_wrote_each_token(url, client, expected):
    prompt, texts, done = expected
    xargs = {"takeover_run": "streamed", "takeover_trace": 1}
    *events, last = ask(client, prompt, n=3, stream=True, extra_body={"vllm_xargs": xargs})
    written, taken = ["", "", ""], [[], [], []]
    for event in events:
        (choice,) = event.choices
        written[choice.index] += choice.text
        taken[choice.index] += event.takeover["positions"]
    positions = [[place for place, took in enumerate(one.taken_over) if took] for one in done]
    assert (written, taken) == (texts, positions)
    for one, places, text, want in zip(last.takeover["choices"], positions, texts, done, strict=True):
        assert (one["positions"], len(one["host_tokens"])) == (places, len(places))
        assert ("".join(one["trace"]["text"]), one["trace"]["takeover"]) == (text, want.taken_over)
        assert one["trace"]["score"] == pytest.approx(want.scores, abs=1e-3)
    shown = requests.get(f"{url}/metrics", timeout=10).text
    for counter in ("vllm:generation_tokens_total{.*}", "takeover:tokens_total", "takeover:guide_passes_total"):
        counts = re.findall(rf"^{counter} (.+)", shown, re.MULTILINE)
        assert len(counts) == 1 + ("vllm" in counter) and all(map(float, counts))  # vLLM's own by engine


def test_a_gate_of_its_own_and_chat(client, expected):
    prompt, _, _ = expected
    never = {"vllm_xargs": {"takeover_tau": 1000.0}}
    assert ask(client, prompt, extra_body=never).takeover["takeovers"] == 0
    messages = [{"role": "user", "content": prompt}]
    answer = client.chat.completions.create(model="guided", messages=messages, max_tokens=8, extra_body=never)
    assert answer.takeover == {"tokens": answer.usage.completion_tokens, "takeovers": 0, "realized_rate": 0.0}
    traced = {"vllm_xargs": {"takeover_trace": 1, "takeover_tau": 0, "takeover_kappa": 0}}
    options = {"max_tokens": 8, "stream": True, "extra_body": traced}
    *events, last = client.chat.completions.create(model="guided", messages=messages, **options)
    places = [place for event in events for place in event.takeover["positions"]]
    assert places == last.takeover["positions"] == list(range(last.takeover["tokens"]))
    assert "".join(event.choices[0].delta.content or "" for event in events) == "".join(last.takeover["trace"]["text"])


# Bodies that our checks pass, or that no check reads: vLLM's own, behind the middleware, must answer them.
BEHIND = (
    {"prompt": None},
    {"prompt": "\ud800"},
    {"stop": [""]},
    {"min_tokens": 10**9},
    {"stream_options": [1], "stream": True},
    *({"stream": True, name: value} for name, value in {"min_tokens": 3, "thinking_token_budget": 5, "logprobs": 21}.items()),
    {"stream": True, "stop_token_ids": [10**8]},
    *({name: value} for name, value in {"stop": "\ud800", "request_id": "\ud800", "vllm_xargs": {"a": "\ud800"}}.items()),
)


@pytest.mark.parametrize("route", ROUTES)
def test_every_body_has_an_answer_and_the_server_lives(url, client, route):
    for body in BEHIND if route == "/v1/completions" else []:
        plain = {"model": "guided", "prompt": "2 + 2 =", "max_tokens": 2}
        assert post(url, route, json.dumps(plain | body).encode(), **KEYED)[0] in (400, 422), body
    for seed in range(40):
        status, answer = post(url, route, make_body(route, seed), **KEYED)
        assert status < 500, (seed, answer)
    assert post(url, route, b" " * (2**23 + 1), **KEYED)[0] == 413
    assert len(ask(client, "2 + 2 =", max_tokens=2).choices) == 1


def test_lm_eval_writes_the_same_by_the_server_by_vllm_and_by_transformers(url, gate, demo_folders, monkeypatch, tmp_path):
    """And `score` the same file for the run, whose scores vLLM reads in the engine that wrote it."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    opened = []

    def open_once(*given):
        opened.append((given[0].engine_arguments, opened[0][1] if opened else VllmBackend(*given)))
        return opened[-1][1]

    monkeypatch.setattr("lm_eval_takeover.vllm.backend.VllmBackend", open_once)
    served = f"base_url={url}/v1/completions,model=guided,tokenizer={demo_folders['guide']},seed=0,num_concurrent=4"
    arguments = dict(one.split("=") for one in gate.split(","))
    engine = {"enforce_eager": True, "max_num_seqs": 8, "kv_cache_memory_bytes": 2**28}
    options = {"log_samples": True, "gen_kwargs": "max_gen_toks=40"}
    found = [
        run_demo(tmp_path / "hf", 2, arguments, **options),
        run_demo(tmp_path / "vllm", 2, arguments | engine | {"backend": "vllm"}, **options),
        evaluate("local-completions", ["takeover_demo"], served, 2, **options),
    ]
    by_hf, by_vllm, by_server = ({row["doc_id"]: row["resps"] for row in one["samples"]["takeover_demo"]} for one in found)
    assert by_vllm == by_hf
    # Concurrent repeats may change places.
    assert _sort(by_server) == _sort(by_hf)
    words = ["--backend", "vllm", "--model_args", ",".join(f"{name}={value}" for name, value in engine.items())]
    assert main(["score", str(tmp_path / "hf")]) == main(["score", str(tmp_path / "vllm"), *words]) == 0
    assert [given for given, _ in opened] == [engine] * 2
    want, got = (_read_scores(tmp_path / name) for name in ("hf", "vllm"))
    assert got.schema == want.schema and len(got) > 500
    for name in want.schema.names:
        if name in (*PLACE, "token_id", *COUNTED):
            assert got[name].to_pylist() == want[name].to_pylist(), name
        else:
            np.testing.assert_allclose(got[name], want[name], atol=1e-4, err_msg=name)


def _sort(responses):
    return {number: sorted(text for one in texts for text in one) for number, texts in responses.items()}


def _read_scores(folder):
    return pq.read_table(folder / "scores").drop("task").sort_by([(name, "ascending") for name in PLACE])

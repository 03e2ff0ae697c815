"""A real server process on loopback, the real `openai` client, and lm-eval's own client against it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace

import pytest
from helpers.pairs import GREEDY, POLICIES, ROOT, SAMPLED

from lm_eval_takeover.demo import calibration_prompts
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.vllm.server import TakeoverMiddleware
from lm_eval_takeover.vllm.settings import EngineSettings, describe_policy

pytestmark = pytest.mark.filterwarnings("ignore")  # the client's


@pytest.fixture(scope="module")
def gate(demo_folders):
    """The model arguments, for the server and for the transformers engine."""
    pair = ",".join(f"{role}={folder}" for role, folder in demo_folders.items())
    return f"{pair},policy=disagreement,tau=1.5,kappa=2.0,dtype=float32"


@pytest.fixture(scope="module")
def url(gate):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["-m", "lm_eval_takeover.cli", "serve", "--model_args", gate, "--port", str(port)]
    engine = ["--enforce-eager", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(2**28)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    server = subprocess.Popen([sys.executable, *words, "--", *engine], env=environment, cwd=ROOT, stdout=sys.stderr)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(server, f"{address}/health")
        yield address
    finally:
        server.terminate()
        server.wait(60)


def _wait(server, address):
    until = time.monotonic() + 240
    while time.monotonic() < until:
        if server.poll() is not None:
            pytest.fail(f"the server ended with {server.returncode}")
        try:
            urllib.request.urlopen(address, timeout=5)
            return
        except OSError:
            time.sleep(1)
    pytest.fail("the server did not start in time")


@pytest.fixture(scope="module")
def client(url):
    from openai import OpenAI

    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def expected(open_hf):
    """The texts of three samples and one greedy one, by the transformers engine."""
    backend = open_hf()
    prompt = calibration_prompts()[0]
    ids = tuple(backend.pair.encode(prompt))
    asked = [Request(ids, sample, 40, SAMPLED) for sample in range(3)] + [Request(ids, 0, 40, GREEDY)]
    backend.policy = POLICIES["disagreement"]
    done = dict(backend.generate(asked, seed=7, rows=4))
    texts = [backend.pair.tokenizer.decode(done[i].tokens, skip_special_tokens=True) for i in range(4)]
    return prompt, texts, [done[i] for i in range(4)]


def ask(client, prompt, **more):
    options = {"temperature": 0.6, "top_p": 0.95, "seed": 7, "max_tokens": 40} | more
    return client.completions.create(model="guided", prompt=prompt, **options)


def test_samples_of_one_request_are_those_of_the_transformers_engine(client, expected):
    prompt, texts, done = expected
    answer = ask(client, prompt, n=3, extra_body={"vllm_xargs": {"takeover_run": "n"}})
    assert [choice.text for choice in answer.choices] == texts[:3]
    assert [choice.takeover["takeovers"] for choice in answer.choices] == [one.takeovers for one in done[:3]]
    tokens = sum(len(one.tokens) for one in done[:3])
    assert answer.takeover["tokens"] == answer.usage.completion_tokens == tokens
    assert answer.takeover["realized_rate"] == pytest.approx(sum(one.takeovers for one in done[:3]) / tokens)


def test_repeats_of_a_prompt_are_numbered_and_a_number_can_be_given(client, expected):
    prompt, texts, _ = expected
    run = {"takeover_run": "repeats"}
    assert [ask(client, prompt, extra_body={"vllm_xargs": run}).choices[0].text for _ in range(3)] == texts[:3]
    assert ask(client, prompt, extra_body={"vllm_xargs": {"takeover_sample": 1}}).choices[0].text == texts[1]


def test_a_stream_ends_with_the_takeovers(client, expected):
    prompt, texts, done = expected
    events = list(ask(client, prompt, stream=True, temperature=0))
    assert "".join(event.choices[0].text for event in events if event.choices) == texts[3]
    assert events[-1].takeover["takeovers"] == done[3].takeovers


def test_a_gate_of_its_own_and_chat(client, expected):
    prompt, _, _ = expected
    never = {"vllm_xargs": {"takeover_tau": 1000.0}}
    assert ask(client, prompt, extra_body=never).takeover["takeovers"] == 0
    messages = [{"role": "user", "content": prompt}]
    answer = client.chat.completions.create(model="guided", messages=messages, max_tokens=8, extra_body=never)
    assert answer.takeover == {"tokens": answer.usage.completion_tokens, "takeovers": 0, "realized_rate": 0.0}


@pytest.mark.parametrize(
    ("xargs", "message"),
    [
        ({"takeover_policy": "entropy"}, "this server was started with policy=disagreement"),
        ({"takeover_rate": 0.5}, "takeover_rate=0.5 is not read by policy=disagreement"),
        ({"takeover_tua": 1}, "unknown setting 'takeover_tua'; did you mean 'tau'"),
        ({"takeover_tau": -3}, "tau=-3.0 is not a number of at least 0"),
    ],
)
def test_what_cannot_be_honoured_is_a_bad_request_in_one_line(client, xargs, message):
    from openai import BadRequestError

    with pytest.raises(BadRequestError, match=message):
        ask(client, "2 + 2 =", extra_body={"vllm_xargs": xargs})


@pytest.mark.parametrize("asked", [{"logprobs": 1}, {"logprobs": True, "top_logprobs": 2}, {"logprobs": 0}])
def test_log_probabilities_of_drafts_are_refused(asked):
    body = {"prompt": "2 + 2 =", **asked}
    settings = EngineSettings(policy=describe_policy(POLICIES["disagreement"]), vocab=512, ends=[])
    middleware = TakeoverMiddleware(None)
    assert middleware._split(dict(body), settings)[0]["logprobs"] == asked["logprobs"]
    with pytest.raises(ValueError, match=r"logprobs=.* verifies drafts of 4 tokens, .*; start one with block_size=1"):
        middleware._split(body, replace(settings, block=4))


def test_lm_eval_writes_the_same_by_the_server_by_vllm_and_by_transformers(url, gate, demo_folders, tmp_path):
    served = f"base_url={url}/v1/completions,model=guided,tokenizer={demo_folders['guide']},seed=0,num_concurrent=4"
    engine = "backend=vllm,enforce_eager=True,max_num_seqs=8,kv_cache_memory_bytes=268435456"
    common = ["--tasks", "takeover_demo", "--limit", "3", "--log_samples"]
    for name, words in (
        ("server", ["--model", "local-completions", "--model_args", served]),
        ("vllm", ["--model", "guided-takeover", "--model_args", f"{gate},{engine},run_dir={tmp_path / 'run'}"]),
        ("hf", ["--model", "guided-takeover", "--model_args", gate, "--batch_size", "32"]),
    ):
        words = ["-m", "lm_eval", *words, *common, "--output_path", str(tmp_path / name)]
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    responses = {name: _responses(tmp_path / name) for name in ("server", "vllm", "hf")}
    assert responses["vllm"] == responses["hf"]
    assert responses["server"] == responses["hf"]
    assert list((tmp_path / "run").rglob("*.parquet"))


def _responses(folder):
    """By document its responses, in sorted order: concurrent repeats may change places."""
    file = next(folder.rglob("samples_takeover_demo_*.jsonl"))
    rows = (json.loads(line) for line in file.read_text().splitlines())
    return {row["doc_id"]: sorted(text for one in row["resps"] for text in one) for row in rows}

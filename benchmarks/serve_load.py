"""The server under load: many clients at once, a fifth of them wrong, and the memory of its processes.

    python benchmarks/serve_load.py                          200 at once, 2,000 in all, the demo pair
    python benchmarks/serve_load.py --block_size 4           the same by drafts
    python benchmarks/serve_load.py --data_parallel_size 2   the same by two engines

First every right request is asked alone. Then rounds of requests are asked at once: plain ones, streams, traced streams, and
streams of two samples. Each text, its number of takeovers and their places must be those that were answered alone; a
wrong request must have a status from 400 to 499. Prints a line a round with the memory (RSS) of the server, its engines and
their workers, which hold the models and the cache.
"""

import argparse
import datetime
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from padded_heads import write_demo

from lm_eval_takeover.demo import calibration_prompts

GATE = "policy=disagreement,tau=1.5,kappa=2.0,dtype=float32"
# A small cache is soon full: what grows behind that is no cache.
ENGINE = ("--enforce-eager", "--max-num-seqs", "32", "--kv-cache-memory-bytes", str(2**25))
# A wrong request: what differs from a right one, or the bytes of its body.
WRONG: tuple[dict[str, Any] | bytes, ...] = (
    b"{",
    b'{"temperature": Infinity}',
    {"n": -1},
    {"max_tokens": 10**6},
    {"prompt": [10**9]},
    {"prompt": "2 + 2 = " * 5000},
    {"vllm_xargs": {"takeover_tua": 1}},
    {"stream": True, "logit_bias": {"3": 5}},
    {"stream": True, "min_tokens": 3},
    {"stream": True, "stop_token_ids": [10**8]},
    {"stop": "\ud800"},
)

Answer = list[tuple[str, int, list[int] | None]]  # of each sample its text, takeovers, and their places where it is traced


def main() -> None:
    options = parse()
    wrong = options.at_once // 5
    right = [make_body(number, options.tokens) for number in range(options.at_once - wrong)]
    bodies = [json.dumps(body).encode() for body in right]
    bodies += [spoil(WRONG[number % len(WRONG)], options.tokens) for number in range(wrong)]
    today = datetime.datetime.now(datetime.UTC).date()
    print(f"{today}, {options.at_once} at once, {wrong} of them wrong, texts of up to {options.tokens} tokens")
    with open_server(options) as (url, server):
        alone = [read(*post(url, body)) for body in bodies[: len(right)]]
        tell("each alone", 0, server, len(right))
        failures, done = 0, 0
        with ThreadPoolExecutor(options.at_once) as clients:
            while done < options.requests:
                started = time.monotonic()
                answers = list(clients.map(lambda body: post(url, body), bodies))
                differing = sum(read(*got) != want for got, want in zip(answers, alone, strict=False))
                taken = sum(not 400 <= status < 500 for status, _ in answers[len(right) :])
                failures, done = failures + differing + taken, done + len(bodies)
                tell(f"{differing} texts differ, {taken} wrong ones not refused", started, server, done)
    print("all answered, texts as one at a time" if not failures else f"{failures} failures")
    sys.exit(failures > 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at_once", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--block_size", type=int, default=1)
    parser.add_argument("--data_parallel_size", type=int, default=1)
    return parser.parse_args()


def make_body(number: int, tokens: int) -> dict[str, Any]:
    """A right request, with draws of its own."""
    kind, prompts = number % 4, calibration_prompts()
    body = {"prompt": prompts[number % len(prompts)], "max_tokens": tokens, "temperature": 0.8, "seed": number}
    body |= {"stream": kind > 0, "n": 2 if kind == 3 else 1}
    return body | {"vllm_xargs": {"takeover_sample": 0, "takeover_trace": int(kind == 2)}}


def spoil(change: dict[str, Any] | bytes, tokens: int) -> bytes:
    return change if isinstance(change, bytes) else json.dumps(make_body(0, tokens) | change).encode()


def post(url: str, body: bytes) -> tuple[int, bytes]:
    asked = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=600) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def read(status: int, data: bytes) -> Answer:
    """What was answered, streamed or not."""
    assert status == 200, data
    if data.startswith(b"{"):
        whole = json.loads(data)
        return [(one["text"], one["takeover"]["takeovers"], None) for one in whole["choices"]]
    events = [json.loads(event[6:]) for event in data.split(b"\n\n") if event.startswith(b"data: {")]
    texts: dict[int, str] = {}
    places: dict[int, list[int]] = {}
    for choice, event in ((event["choices"][0], event) for event in events[:-1]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        places[choice["index"]] = places.get(choice["index"], []) + event.get("takeover", {}).get("positions", [])
    told = events[-1]["takeover"]
    parts = told.get("choices", [told])
    for index, one in enumerate(parts):
        assert one.get("positions", []) == places[index], (one, places)
    return [(texts[index], one["takeovers"], one.get("positions")) for index, one in enumerate(parts)]


def tell(what: str, started: float, server: psutil.Process, done: int) -> None:
    seconds = f"{time.monotonic() - started:5.1f} s" if started else " " * 7
    sizes = " + ".join(f"{name} {one.memory_info().rss / 2**20:.1f}" for name, one in name_processes(server))
    print(f"{done:5} requests {seconds}  {sizes} MiB  {what}", flush=True)


def name_processes(server: psutil.Process) -> list[tuple[str, psutil.Process]]:
    """The server, its engines, and their workers, which hold the models and the cache."""
    named = [("server", server)]
    for one in server.children(recursive=True):
        if found := re.search(r"VLLM::(EngineCore|Worker)", "".join(one.cmdline())):
            named.append(({"EngineCore": "engine", "Worker": "worker"}[found[1]], one))
    return named


@contextmanager
def open_server(options: argparse.Namespace) -> Iterator[tuple[str, psutil.Process]]:
    """The address and the process of a server of the demo pair."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        pair = write_demo(Path(folder))
        engines = f"block_size={options.block_size},data_parallel_size={options.data_parallel_size}"
        gate = f"base={pair['base']},guide={pair['guide']},{GATE},{engines}"
        words = ["-m", "lm_eval_takeover.cli", "serve", "--model_args", gate, "--port", str(port), "--", *ENGINE]
        quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        words += ["--disable-uvicorn-access-log"]
        log = Path(folder) / "log"
        with log.open("w") as out:
            environment = os.environ | {"OMP_NUM_THREADS": "1"} | quiet
            server = subprocess.Popen([sys.executable, *words], env=environment, stdout=out, stderr=out)
        url = f"http://127.0.0.1:{port}"
        try:
            if not is_ready(server, url):
                sys.exit(f"the server did not start: {log.read_text()[-2000:]}")
            yield url, psutil.Process(server.pid)
        finally:
            server.terminate()
            server.wait(60)


def is_ready(server: subprocess.Popen[bytes], url: str) -> bool:
    until = time.monotonic() + 1500
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
            return True
        except OSError:
            time.sleep(1)
    return False


if __name__ == "__main__":
    main()

"""SIGTERM while a server loads: does it end, with which status, how soon, and what does it leave behind?

    python benchmarks/serve_stops.py               5 tries at instants between 1 and 40 seconds after the start
    python benchmarks/serve_stops.py --swallowed   200 tries on a process that imports all the time, without vLLM: how often is
                                                   a signal lost that raises KeyboardInterrupt, as vLLM's does, and one of ours?

A process that lives for 60 more seconds has lost its signal.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from padded_heads import write_demo

GATE = "policy=disagreement,tau=1.5,kappa=2.0,dtype=float32,block_size=1"
ENGINE = ("--enforce-eager", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(2**25))
IMPORTING = r"""
import importlib, signal, sys, time
from lm_eval_takeover import stopping

def interrupt(*_):
    raise KeyboardInterrupt

if sys.argv[1] == "raised":
    signal.signal(signal.SIGTERM, interrupt)
else:
    stopping.end_with_children()
names = "email.message xml.dom.minidom http.client unittest.mock asyncio.base_events logging.config pydoc sqlite3 ctypes.util \
json.tool tarfile zipfile argparse decimal html.parser csv smtplib imaplib ftplib xmlrpc.client".split()
known, until = set(sys.modules), time.monotonic() + 3
print("begins", flush=True)
while time.monotonic() < until:
    for name in names:
        importlib.import_module(name)
    for name in set(sys.modules) - known:
        del sys.modules[name]
print("lives", flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int)
    parser.add_argument("--first", type=float, default=1.0)
    parser.add_argument("--last", type=float, default=40.0)
    parser.add_argument("--swallowed", action="store_true")
    options = parser.parse_args()
    rng = random.Random(0)
    if options.swallowed:
        tries = options.tries or 200
        for way in ("raised", "ended"):
            lost = sum(is_lost(way, rng.random()) for _ in range(tries))
            print(f"{way}: {lost} of {tries} lost", flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        pair = write_demo(Path(folder))
        gate = f"base={pair['base']},guide={pair['guide']},{GATE}"
        for number in range(options.tries or 5):
            print(f"try {number}: {stop_server(gate, rng.uniform(options.first, options.last))}", flush=True)


def is_lost(way: str, after: float) -> bool:
    words = [sys.executable, "-W", "ignore", "-c", IMPORTING, way]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after)
        process.terminate()
        return "lives" in process.stdout.read()


def stop_server(gate: str, after: float) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["-m", "lm_eval_takeover.cli", "serve", "--model_args", gate, "--port", str(port), "--", *ENGINE]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    server = subprocess.Popen([sys.executable, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after)
    started = psutil.Process(server.pid).children(recursive=True)
    told = time.monotonic()
    server.send_signal(signal.SIGTERM)
    said = "LOST"
    with suppress(subprocess.TimeoutExpired):
        said = f"status {server.wait(60)} after {time.monotonic() - told:.1f} s"
    left = [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    for one in (*left, psutil.Process(server.pid)) if server.poll() is None else left:
        one.kill()
    server.wait()
    return f"SIGTERM at {after:.1f} s: {said}; {len(left)} of {len(started)} processes left"


if __name__ == "__main__":
    main()

"""Two engines on the two nodes of a Ray cluster, started as docs/vllm.md says; both nodes are this machine."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers.pairs import POLICIES, ROOT

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture
def cluster():
    """The address of two nodes with a core each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    shared = ["--num-cpus", "1", "--object-store-memory", str(2**27), "--disable-usage-stats", "--block"]
    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
        )  # a short name
        head = ["--head", "--port", str(port), "--temp-dir", folder, "--include-dashboard", "false"]
        for words in (head, ["--address", address]):
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words, *shared]
            node = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(node.terminate)
            assert any("Ray runtime started" in line for line in node.stdout)
        yield address


def test_engines_of_a_cluster_write_the_texts_of_one_and_one_of_them_may_end(cluster, tight, open_hf, requests):
    asked = requests[:6]
    hf = open_hf()
    hf.policy = POLICIES["disagreement"]
    expected = {i: [one.tokens, one.taken_over] for i, one in hf.generate(asked, seed=3, rows=8)}
    values = tight | {"data_parallel_size": 2, "data_parallel_backend": "ray"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "write_by_ray.py")],
        input=json.dumps([values, [asdict(one) for one in asked]]),
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_ADDRESS": cluster},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    written = json.loads(done.stdout.splitlines()[-1])
    assert written["nodes"] == 2
    assert dict(enumerate(written["texts"])) == expected
    assert "vLLM engine 1 has ended; the run goes on without it (engines left: 1)" in done.stderr

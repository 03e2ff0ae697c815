"""Two engines on the two nodes of a Ray cluster, started as docs/vllm.md says; both nodes are this machine."""

import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import pytest
from helpers.pairs import POLICIES

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.pair.loading import load_pair

ray = pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture
def cluster(monkeypatch):
    """The address of two nodes with a core each."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # whatever token the user has
    shared = ["--num-cpus", "1", "--object-store-memory", str(2**27), "--disable-usage-stats", "--block"]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True))  # a short name

        def start(*words, until):
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words, *shared]
            node = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(node.terminate)
            return next(found[1] for line in node.stdout if (found := re.search(until, line)))

        head = ["--head", "--port", "0", "--temp-dir", folder, "--include-dashboard", "false"]
        address = start(*head, until=r"--address='(.+)'")
        start("--address", address, until="(Ray runtime started)")
        yield address
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own
def test_engines_of_a_cluster_write_the_texts_of_one_and_one_of_them_may_end(
    cluster, tight, open_hf, requests, monkeypatch, caplog
):
    from lm_eval_takeover.vllm.backend import VllmBackend

    asked = requests[:6]
    hf = open_hf()
    hf.policy = POLICIES["disagreement"]
    expected = {i: (one.tokens, one.taken_over) for i, one in hf.generate(asked, seed=3, rows=8)}
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    arguments = ModelArguments.parse(tight | {"data_parallel_size": 2, "data_parallel_backend": "ray"})
    backend, found = VllmBackend(arguments, load_pair(arguments), hf.policy), {}
    actors = backend.engine.group.actors
    find_node = lambda worker: ray.get_runtime_context().get_node_id()  # noqa: E731 (a function of this file is not known there)
    assert len({ray.get(actor.__ray_call__.remote(find_node)) for actor in actors}) == 2
    for index, one in backend.generate(asked, seed=3):
        found[index] = one.tokens, one.taken_over
        if len(found) == 1:
            ray.kill(actors[0])
    backend.close()
    assert found == expected
    assert "vLLM engine 1 has ended; the run goes on without it (engines left: 1)" in caplog.text

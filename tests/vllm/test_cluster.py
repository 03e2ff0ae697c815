"""Several engines on Ray's nodes: where they run, what must be the same, and that each text is written once, whatever ends.

The nodes are this machine, each with three GPUs that are not there; engines are stubs but for those of the last test.
"""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing

import numpy as np
import psutil
import pytest
import torch
from helpers.pairs import POLICIES
from helpers.processes import HELPERS, mounted, wait_until
from helpers.stub_engines import StubEngines
from helpers.vllm_engines import open_with

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.pair.pair import load_pair
from lm_eval_takeover.vllm.cluster import Engines
from lm_eval_takeover.vllm.engine import Job
from lm_eval_takeover.vllm.launch import count_engines

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's and Ray's own


@pytest.mark.parametrize(
    ("name", "value"), [("data_parallel_size", 0), ("data_parallel_timeout", "two"), ("tensor_parallel_size", 0)]
)
def test_what_is_no_number_of_engines_or_seconds_is_refused(name, value):
    arguments = ModelArguments.parse({"backend": "vllm", "data_parallel_size": 2, name: value})
    with pytest.raises(ArgumentError, match=f"{name}={value} is not a whole number of 1 or more"):
        count_engines(arguments)


def test_without_ray_the_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArgumentError, match="data_parallel_size needs Ray: pip install ray"):
        Engines(ModelArguments(backend="vllm"), None, POLICIES["disagreement"])


class Cluster:
    """Ray's nodes as docs/vllm.md starts them, by their names."""

    def __init__(self, stack, folder):
        self.ray = pytest.importorskip("ray", reason="Ray is not installed")
        self._stack, self._folder, self.nodes = stack, folder, {}
        head = ["--head", "--port", "0", "--temp-dir", folder, "--include-dashboard", "false"]
        self.address = self.start("first", *head, until=r"--address='(.+)'")
        self.start("second")

    def start(self, name, *words, until="(Ray runtime started)"):
        words = words or ("--address", self.address)
        shared = ["--num-cpus", "1", "--num-gpus", "3", "--object-store-memory", str(2**27), "--disable-usage-stats", "--block"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--node-name", name, *words, *shared]
        options = {"stdout": subprocess.PIPE, "text": True, "env": os.environ | {"STUB_NODE": name}, "cwd": self._folder}
        for _ in range(3):
            node = self.nodes[name] = self._stack.enter_context(subprocess.Popen(command, **options))
            self._stack.callback(node.terminate)
            if told := next((found[1] for line in node.stdout if (found := re.search(until, line))), None):
                return told
        pytest.skip("Ray gives a node 30 seconds to start, which this busy machine did not keep three times")

    def kill(self, name):
        """Kill the raylet of a node; whatever else there is of it ends, too."""
        node = psutil.Process(self.nodes[name].pid)
        (raylet,) = [one for one in node.children(recursive=True) if one.name() == "raylet"]
        raylet.kill()


@pytest.fixture(scope="module")
def cluster():
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("RAY_AUTH_MODE", "disabled")  # whatever token the user has
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True))  # a short name
        started = Cluster(stack, folder)
        patch.setenv("RAY_ADDRESS", started.address)
        yield started
        started.ray.shutdown()


@pytest.fixture
def open_engines(cluster):
    """Opens stub engines, and closes all before the next test."""

    def open_some(**arguments):
        usual = {"backend": "vllm", "data_parallel_size": 2, "data_parallel_backend": "ray", "data_parallel_wait": 120}
        parsed = ModelArguments.parse(usual | arguments)
        opened.append(StubEngines(parsed, load_pair(parsed), POLICIES["disagreement"]))
        return opened[-1]

    opened = []
    yield open_some
    for one in opened:
        one.close()
    wait_until(lambda: cluster.ray.available_resources().get("GPU") == cluster.ray.cluster_resources().get("GPU"))


def run(engines, count=20):
    return {text.number: text for text in engines.run([Job(number, None, None) for number in range(count)])}


def test_engines_without_room_or_too_slow_to_start_are_refused(open_engines):
    # What is free Ray knows a moment later: engines of the test before may still count.
    nodes = r"first has 3 \(\d free\), second has 3 \(\d free\): room for 2 engines; give fewer, or fewer ranks"
    with pytest.raises(ArgumentError, match=rf"data_parallel_size=3 needs 2 GPUs on one node for each engine; {nodes}"):
        open_engines(data_parallel_size=3, tensor_parallel_size=2)
    with pytest.raises(ArgumentError, match=r"needs 8 GPUs on one node .* room for 0 engines"):
        open_engines(tensor_parallel_size=8)
    with pytest.raises(ArgumentError, match=r"engine on node \w+ did not start within data_parallel_wait=1 seconds"):
        open_engines(data_parallel_wait=1)  # which takes more to import torch


def test_every_job_is_written_once_whichever_engine_ends_and_the_last_one_ends_the_run(open_engines, caplog):
    engines, counted = open_engines(tensor_parallel_size=2), []
    first = engines.run([Job(number, None, None) for number in range(9)], lambda tokens, taken: counted.append(tokens))
    next(first)
    first.close()  # leaves no job behind
    assert counted == [1]
    texts = run(engines)
    assert sorted(texts) == list(range(20))
    gpus = {text.tokens[0]: text.passes for text in texts.values()}
    assert len(gpus) == 2 and all(len(own) == 2 for own in gpus.values()) and len(set.union(*gpus.values())) == 4
    texts = engines.run([Job(number, None, None) for number in range(20)])
    first = next(texts)
    os.kill(first.tokens[0], signal.SIGKILL)
    assert sorted([first.number, *(text.number for text in texts)]) == list(range(20))
    assert re.search(r"a vLLM engine on node \w+ has ended \(.*\); the run goes on \(engines left: 1\)", caplog.text)
    (left,) = {text.tokens[0] for text in run(engines).values()}
    os.kill(left, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"every vLLM engine has ended, and 20 of 20 samples are missing\. Give"):
            run(engines)


def test_a_hung_engine_is_ended_and_the_others_write_its_jobs(open_engines, caplog):
    engines = open_engines(data_parallel_timeout=15)
    texts = engines.run([Job(number, None, None) for number in range(20)])
    first = next(texts)
    os.kill(first.tokens[0], signal.SIGSTOP)
    assert sorted([first.number, *(text.number for text in texts)]) == list(range(20))
    assert re.search(r"on node \w+ wrote no token for data_parallel_timeout=15 seconds and was ended; the run", caplog.text)
    wait_until(lambda: not psutil.pid_exists(first.tokens[0]))  # its GPU is free


def test_the_jobs_of_a_node_that_dies_are_written_by_the_others(cluster, open_engines, caplog):
    cluster.start("third")
    engines = open_engines(data_parallel_size=3)
    (third,) = [engine.actor for engine in engines._engines if engine.node == "third"]
    pid = cluster.ray.get(third.__ray_call__.remote(lambda _: os.getpid()))
    texts = engines.run([Job(number, None, None) for number in range(30)])
    first = next(texts)
    cluster.kill("third")
    wait_until(lambda: not psutil.pid_exists(pid))
    assert sorted([first.number, *(text.number for text in texts)]) == list(range(30))
    assert "a vLLM engine on node third has ended" in caplog.text and len(run(engines)) == 20
    wait_until(lambda: not any(node["Alive"] for node in cluster.ray.nodes() if node["NodeName"] == "third"))


def test_what_differs_on_a_node_is_named_before_any_text(cluster, open_engines, demo_folders, tmp_path, monkeypatch):
    for role, folder in demo_folders.items():
        shutil.copytree(folder, tmp_path / role)
    (tmp_path / "plugin.py").write_text("X = 1\n")
    monkeypatch.chdir(tmp_path)  # the nodes were started elsewhere
    monkeypatch.setenv("HF_HOME", "/of/the/driver")
    given = {"base": "base", "guide": "guide", "plugins": "plugin.py"}
    engines = open_engines(**given)
    look = lambda actor: (os.getcwd(), os.environ["HF_HOME"], os.environ["STUB_NODE"])  # noqa: E731
    found = cluster.ray.get([engine.actor.__ray_call__.remote(look) for engine in engines._engines])
    assert found == [(str(tmp_path), "/of/the/driver", engine.node) for engine in engines._engines]
    engines.close()
    (tmp_path / "other.json").write_text((tmp_path / "guide" / "config.json").read_text() + " ")
    files = r"models\.guide\.model is blake2b:\w+ there and blake2b:\w+ here; make them the same"
    for mount, message in (
        ("--bind other.json guide/config.json", files),
        (f"-t tmpfs none {tmp_path}", rf"plugins='{tmp_path}/plugin\.py' is no file"),
    ):
        with mounted(f"mount {mount}") as pid, pytest.raises(ArgumentError, match=rf"^the engine on node \w+: {message}"):
            open_engines(**given, data_parallel_size=1, stub_mounts=pid)
    with pytest.raises(ArgumentError, match=r"^the engine on node \w+: torch is 9\.x there and .* here; make them the same"):
        open_engines(**given, data_parallel_size=1, stub_torch="9.x")


@pytest.mark.skipif("CLUSTER" not in os.environ, reason="five whole runs in 3 minutes: make test-cluster")
def test_a_run_waits_for_gpus_can_be_stopped_and_goes_on_after_its_driver_was_killed(cluster, open_engines, tmp_path):
    def start(name, engines, *, until=None):
        given = f"backend=vllm,data_parallel_size={engines},stub_pause=0.3,run_dir={tmp_path / name}"
        words = ["--model", "guided-takeover", "--tasks", "takeover_demo", "--limit", "3", "--model_args", given]
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen([sys.executable, HELPERS / "stub_engines.py", *words], stdout=log, stderr=log)
        if until:
            wait_until(lambda: until in (tmp_path / "log").read_text(), process)
        return process

    def read(name):
        with closing(sqlite3.connect(f"file:{tmp_path / name}/journal-000.sqlite?mode=ro", uri=True)) as journal:
            return journal.execute("SELECT key, text FROM samples ORDER BY key").fetchall()

    open_engines(data_parallel_size=1).close()  # connects to Ray
    taken = cluster.ray.util.placement_group([{"GPU": 3}, {"GPU": 3}])
    assert taken.wait(60)
    with pytest.raises(ArgumentError, match=r"second has 3 \(0 free\): not free within data_parallel_wait=1 seconds"):
        open_engines(data_parallel_wait=1)
    waits = "second has 3 (0 free): waiting until others free them; Ctrl-C ends this"
    process = start("run", 2, until=waits)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130 and "stopped; " in (tmp_path / "log").read_text()
    process = start("run", 2, until=waits)
    cluster.ray.util.remove_placement_group(taken)
    wait_until(lambda: len(read("run")) > 3, process)
    process.kill()
    assert process.wait() == -signal.SIGKILL and len(read("run")) < 24
    assert start("run", 2).wait() == 0 and "24 samples are finished already" in (tmp_path / "log").read_text()
    assert start("one", 1).wait() == 0
    assert read("run") == read("one") and len(read("one")) == 24


def test_real_engines_on_two_nodes_write_the_texts_of_transformers_and_one_of_them_may_end(
    cluster, tight, open_hf, requests, caplog
):
    from lm_eval_takeover.vllm.backend import VllmBackend

    asked, reference = requests[:6], open_hf()
    reference.policy = POLICIES["disagreement"]
    write = lambda backend, **rows: dict(backend.generate(asked, seed=3, **rows))  # noqa: E731
    want = write(reference, rows=8)
    with closing(open_with(VllmBackend, tight, {})(data_parallel_size=2)) as backend:
        first, second = backend.engine._engines
        assert {first.node, second.node} == {"first", "second"}
        written = write(backend)
        for number, one in want.items():
            assert (written[number].tokens, written[number].taken_over) == (one.tokens, one.taken_over)
            np.testing.assert_allclose(written[number].scores, one.scores, atol=1e-4, rtol=1e-4)
        forced = backend.force([asked[0].prompt] * 3, [written[0].tokens] * 3, seed=3, labels=["a"] * 3)
        assert len(forced) == 3 and torch.equal(forced[0].scores, forced[2].scores)
        os.kill(cluster.ray.get(first.actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
        again = write(backend)
    assert {number: one.tokens for number, one in again.items()} == {number: one.tokens for number, one in want.items()}
    assert f"a vLLM engine on node {first.node} has ended" in caplog.text

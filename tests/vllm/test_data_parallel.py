"""Several engines share the work: no job is lost or written twice, whichever of them ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from helpers.pairs import POLICIES
from helpers.vllm_engines import open_with

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.vllm.data_parallel import EngineActor, Engines
from lm_eval_takeover.vllm.engine import EngineFacts, Job, Text
from lm_eval_takeover.vllm.launch import count_engines

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own


@pytest.mark.parametrize(
    ("name", "value"), [("data_parallel_size", 0), ("data_parallel_size", "two"), ("tensor_parallel_size", 0)]
)
def test_what_is_no_number_of_engines_is_refused(name, value):
    arguments = ModelArguments.parse({"backend": "vllm", "data_parallel_size": 2, name: value})
    with pytest.raises(ArgumentError, match=f"{name}={value} is not a whole number of 1 or more"):
        count_engines(arguments)


def test_without_ray_the_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArgumentError, match="data_parallel_size needs Ray: pip install ray"):
        Engines(ModelArguments(backend="vllm"), POLICIES["disagreement"])


def make_actor(most=2, error=None):
    """The class of an actor without vLLM, which holds `most` jobs and writes one a step. A local class travels to Ray."""

    class Script:
        def __init__(self):
            self.jobs = []

        def add(self, job):
            assert len(self.jobs) < most * 5 // 4
            self.jobs.append(job)

        def step(self):
            import ray

            node = ray.get_runtime_context().get_node_id()
            gpus = {f"{node} {gpu}" for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",")}
            return [Text(self.jobs.pop(0).number, [os.getpid()], None, gpus)], 1

        def abort(self):
            self.jobs.clear()

    class ScriptedActor(EngineActor):
        async def start(self, arguments, policy):
            assert not any(name.startswith("data_parallel") for name in arguments.engine_arguments)
            if error:
                raise ArgumentError(error)
            self.engine, self._texts = Script(), {}
            return EngineFacts(torch.float32, 64, most, 1)

    return ScriptedActor


def run(engines, count=20):
    return {text.number: text for text in engines.run([Job(number, None, None) for number in range(count)])}


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster as docs/vllm.md starts it: two nodes with a core and two GPUs each, which are both this machine."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    shared = ["--num-cpus", "1", "--num-gpus", "2", "--object-store-memory", str(2**27), "--disable-usage-stats", "--block"]
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("RAY_AUTH_MODE", "disabled")  # whatever token the user has
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True))  # a short name

        def start(*words, until):
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words, *shared]
            node = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(node.terminate)
            return next(found[1] for line in node.stdout if (found := re.search(until, line)))

        head = ["--head", "--port", "0", "--temp-dir", folder, "--include-dashboard", "false"]
        address = start(*head, until=r"--address='(.+)'")
        start("--address", address, until="(Ray runtime started)")
        patch.setenv("RAY_ADDRESS", address)
        yield ray
        ray.shutdown()


@pytest.fixture
def open_engines(cluster, tight):
    """Opens engines, or a backend of them, and closes all before the next test."""
    from lm_eval_takeover.vllm.backend import VllmBackend

    def open_some(actor=None, **arguments):
        parsed = ModelArguments.parse({"backend": "vllm", "data_parallel_size": 2, "data_parallel_backend": "ray"} | arguments)
        opened.append(Engines(parsed, POLICIES["disagreement"], actor or make_actor()))
        return opened[-1]

    opened, backends = [], {}
    open_some.backend = open_with(VllmBackend, tight, backends)
    yield open_some
    for one in (*opened, *backends.values()):
        one.close()


def test_every_job_is_written_once_by_engines_with_gpus_of_their_own(open_engines):
    with pytest.raises(ArgumentError, match=r"data_parallel_size=3 needs 6 GPUs, and Ray has 4; give fewer engines"):
        open_engines(data_parallel_size=3, tensor_parallel_size=2)
    with pytest.raises(ArgumentError, match=r"^guide='x' has heads of 48$"):
        open_engines(make_actor(error="guide='x' has heads of 48"))
    engines, counted = open_engines(tensor_parallel_size=2), []
    first = engines.run([Job(number, None, None) for number in range(9)], lambda tokens, taken: counted.append(tokens))
    next(first)
    first.close()  # leaves no job behind
    assert counted == [1]
    texts = run(engines)
    assert sorted(texts) == list(range(20))
    gpus = {text.tokens[0]: text.passes for text in texts.values()}
    assert len(gpus) == 2 and all(map(len, gpus.values())) and len(set.union(*gpus.values())) == 4


def test_the_others_write_what_an_engine_leaves_and_the_last_one_ends_the_run(open_engines, caplog):
    engines, jobs = open_engines(), [Job(number, None, None) for number in range(20)]
    texts = engines.run(jobs)
    first = next(texts)
    os.kill(first.tokens[0], signal.SIGKILL)
    assert sorted([first.number, *(text.number for text in texts)]) == list(range(20))
    assert "a vLLM engine has ended; the run goes on (engines left: 1)" in caplog.text
    (left,) = {text.tokens[0] for text in run(engines).values()}
    os.kill(left, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="every vLLM engine has ended"):
            run(engines)


def write(backend, requests, after_first=None):
    found = {}
    for index, one in backend.generate(requests, seed=3, rows=8):
        found[index] = one.tokens, one.taken_over
        if after_first is not None and len(found) == 1:
            after_first()
    return found


def test_engines_of_a_cluster_write_the_texts_of_one_and_one_of_them_may_end(cluster, open_engines, open_hf, requests, caplog):
    backend, hf, asked = open_engines.backend(data_parallel_size=2), open_hf(), requests[:6]
    backend.policy = hf.policy = POLICIES["disagreement"]
    expected, ray = write(hf, asked), cluster
    actors = [*backend.engine.actors.values()]
    find_node = lambda worker: (ray.get_runtime_context().get_node_id(), os.getpid())  # noqa: E731 (known to an actor as a value)
    nodes, pids = zip(*ray.get([actor.__ray_call__.remote(find_node) for actor in actors]), strict=True)
    assert len({*nodes}) == 2
    assert write(backend, asked) == expected
    forced = backend.force([asked[0].prompt] * 3, [expected[0][0]] * 3, seed=3, labels=["a"] * 3)
    assert len(forced) == 3 and torch.equal(forced[0].scores, forced[2].scores)
    # As `effects`, `score` and `calibrate` ask them.
    few, texts = asked[:2], [expected[number][0] for number in range(2)]
    read = [one.compare([registered.get("ce")], [one.prompt for one in few], texts, "ab") for one in (backend, hf)]
    for got, want in zip(*read, strict=True):
        np.testing.assert_allclose(got["ce"], want["ce"], atol=1e-4)
    alone = [
        {index: text.tokens for index, text in one.generate(few, seed=3, rows=2, policy=ALONE["base"]())}
        for one in (backend, hf)
    ]
    assert alone[0] == alone[1] == {index: tokens for index, tokens, _ in backend.roll_out(few, seed=3)}
    assert write(backend, asked, lambda: os.kill(pids[0], signal.SIGKILL)) == expected
    assert "a vLLM engine has ended; the run goes on (engines left: 1)" in caplog.text

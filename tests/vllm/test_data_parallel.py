"""Several engines share the work: no job is lost or written twice, whichever of them ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.pairs import POLICIES
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.pair.loading import load_pair
from lm_eval_takeover.vllm.data_parallel import Ended, Engines, open_engines, share_devices
from lm_eval_takeover.vllm.engine import EngineFacts, Job, Text


class ScriptedGroup:
    """Engines that write each job in one answer; `script` says whose answer comes next, and whether it is gone then."""

    def __init__(self, script):
        self.script, self.held, self.gone, self.asked = iter(script), {}, set(), {}

    def ask(self, number, method, *arguments):
        assert number not in self.asked, "asked twice"
        self.asked[number] = method, arguments

    def wait(self, numbers):
        place, dies = next(self.script, (0, False))
        number = sorted(numbers)[place % len(numbers)]
        method, arguments = self.asked.pop(number)
        if number in self.gone or (dies and method == "write"):
            self.gone.add(number)
            return number, Ended()
        if method == "describe":
            return number, EngineFacts(torch.float32, 64, 2, 1)
        if method == "abort":
            self.held[number] = []
            return number, None
        jobs = self.held.setdefault(number, [])
        jobs += arguments[0]
        assert len(jobs) <= 4  # two batches
        texts = [Text(jobs.pop(0).number, [], None, {})] if jobs else []
        return number, (texts, 1)

    def close(self):
        pass


@given(st.integers(1, 4), st.integers(0, 30), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_every_job_is_written_once_or_the_run_ends(size, count, script):
    group = ScriptedGroup([(0, False)] * size + script)
    engines, written = Engines(group, size), []
    with suppress(RuntimeError):
        for text in engines.run([Job(number, None, None) for number in range(count)]):
            written.append(text.number)
    assert len(written) == len(set(written))
    assert sorted(written) == list(range(count)) or len(group.gone) == size


def test_a_run_that_is_stopped_leaves_no_job_behind():
    group = ScriptedGroup([])
    engines = Engines(group, 2)
    first = engines.run([Job(number, None, None) for number in range(9)])
    next(first)
    first.close()
    assert not any(group.held.values())
    assert sorted(text.number for text in engines.run([Job(1, None, None)])) == [1]


def test_an_engine_that_ended_between_two_runs_is_one_less(caplog):
    group = ScriptedGroup([])
    engines, jobs = Engines(group, 2), [Job(number, None, None) for number in range(4)]
    group.gone.add(0)
    assert len(list(engines.run(jobs))) == 4
    assert "vLLM engine 1 has ended; the run goes on without it (engines left: 1)" in caplog.text
    group.gone.add(1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="every vLLM engine has ended"):
            list(engines.run(jobs))


def test_an_engine_that_cannot_start_ends_the_command_in_one_line():
    group = ScriptedGroup([])
    group.gone.add(1)
    with pytest.raises(ArgumentError, match="engine 2 of 2 ended as it started; its error is above"):
        Engines(group, 2)


@pytest.mark.parametrize(
    ("visible", "count", "expected"),
    [(None, 4, ["0,1", "2,3"]), ("3,5,6,7", 8, ["3,5", "6,7"]), ("GPU-a,GPU-b,GPU-c,GPU-d", 4, ["GPU-a,GPU-b", "GPU-c,GPU-d"])],
)  # fmt: skip
def test_engines_have_gpus_of_their_own(visible, count, expected, monkeypatch):
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=lambda: True, device_count=lambda: count))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert share_devices(2, 2) == expected
    with pytest.raises(ArgumentError, match=r"needs 6 GPUs, and 4 are visible; give data_parallel_size=2"):
        share_devices(3, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("data_parallel_size", 0), ("data_parallel_size", "two"), ("tensor_parallel_size", 0), ("data_parallel_backend", "x")],
)  # fmt: skip
def test_what_is_no_number_of_engines_is_refused(name, value):
    arguments = ModelArguments.parse({"backend": "vllm", "data_parallel_size": 2, name: value})
    with pytest.raises(ArgumentError, match=f"{name}={value}"):
        open_engines(arguments, POLICIES["disagreement"])


@pytest.fixture
def expected(open_hf, requests):
    """Tokens and takeovers of the first six requests, by number."""
    hf = open_hf()
    hf.policy = POLICIES["disagreement"]
    return {i: (one.tokens, one.taken_over) for i, one in hf.generate(requests[:6], seed=3, rows=8)}


def write(backend, requests, after_first=None):
    found = {}
    for index, one in backend.generate(requests[:6], seed=3):
        found[index] = one.tokens, one.taken_over
        if after_first is not None and len(found) == 1:
            after_first()
    return found


@pytest.mark.filterwarnings("ignore")  # vLLM's own
def test_two_engines_write_the_texts_of_one_and_the_other_goes_on_alone(open_vllm, open_hf, requests, expected, caplog):
    backend, hf = open_vllm(data_parallel_size=2), open_hf()
    assert write(backend, requests) == expected
    forced = backend.force([requests[0].prompt] * 3, [expected[0][0]] * 3, seed=3, labels=["a"] * 3)
    assert len(forced) == 3 and torch.equal(forced[0].scores, forced[2].scores)
    # As `effects`, `score` and `calibrate` ask them.
    asked, texts = requests[:2], [expected[number][0] for number in range(2)]
    read = [one.compare([registered.get("ce")], [one.prompt for one in asked], texts, "ab") for one in (backend, hf)]
    for got, want in zip(*read, strict=True):
        np.testing.assert_allclose(got["ce"], want["ce"], atol=1e-4)
    alone = [
        {index: text.tokens for index, text in one.generate(asked, seed=3, rows=2, policy=ALONE["base"]())}
        for one in (backend, hf)
    ]
    assert alone[0] == alone[1] == {index: tokens for index, tokens, _ in backend.roll_out(asked, seed=3)}

    first, second = (process.pid for process in backend.engine.group.processes)
    assert write(backend, requests, lambda: os.kill(first, signal.SIGKILL)) == expected
    assert "vLLM engine 1 has ended; the run goes on without it (engines left: 1)" in caplog.text
    assert write(backend, requests) == expected
    with pytest.raises(RuntimeError, match="every vLLM engine has ended"):
        write(backend, requests, lambda: os.kill(second, signal.SIGKILL))


@pytest.fixture
def cluster(monkeypatch):
    """The address of a Ray cluster as docs/vllm.md starts it: two nodes with a core each, which are both this machine."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
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
        monkeypatch.setenv("RAY_ADDRESS", address)
        yield ray
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own
def test_engines_of_a_cluster_write_the_texts_of_one_and_one_of_them_may_end(cluster, tight, requests, expected, caplog):
    from lm_eval_takeover.vllm.backend import VllmBackend

    arguments = ModelArguments.parse(tight | {"data_parallel_size": 2, "data_parallel_backend": "ray"})
    backend = VllmBackend(arguments, load_pair(arguments), POLICIES["disagreement"])
    actors = backend.engine.group.actors
    find_node = lambda worker: cluster.get_runtime_context().get_node_id()  # noqa: E731 (a function here is not known there)
    assert len({cluster.get(actor.__ray_call__.remote(find_node)) for actor in actors}) == 2
    assert write(backend, requests, lambda: cluster.kill(actors[0])) == expected
    backend.close()
    assert "vLLM engine 1 has ended; the run goes on without it (engines left: 1)" in caplog.text

"""vLLM writes what the transformers engines write: tokens, takeovers, scores, observations, log-likelihoods.

Several engines share the work: no job is lost or written twice, whichever of them ends.
"""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from helpers.pairs import METHODS, POLICIES, save_random_model
from helpers.vllm_engines import open_with
from safetensors.torch import load_file, save_file

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policies import Early
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import COUNTED
from lm_eval_takeover.vllm.engine import EngineActor, EngineFacts, Engines, Job, Text
from lm_eval_takeover.vllm.launch import count_engines

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's and Ray's own
# Of each kind that the gate inside vLLM treats in its own way. Scores are compared below.
KINDS = {name: POLICIES[name] for name in ("disagreement", "entropy", "random", "early", "base", "guide")}
KINDS |= {name: METHODS[name] for name in ("top1", "surprise", "lossy", "ensemble")} | {"early by length": Early(rate=0.3)}
KINDS |= {f"{name}, reverse": replace(KINDS[name], direction="reverse") for name in ("disagreement", "surprise", "ensemble")}


def write(backend, policy, requests):
    backend.policy = policy
    return dict(backend.generate(requests, seed=3, rows=8, traced=True))


@cache
def write_reference(backend, policy, requests):
    return write(backend, policy, requests)


def assert_same(backend, reference, policy, requests):
    ours, theirs = write(backend, policy, requests), write_reference(reference, policy, tuple(requests))
    for number, want in theirs.items():
        got = ours[number]
        assert got.tokens == want.tokens, (number, requests[number].label)
        assert got.taken_over == want.taken_over
        np.testing.assert_allclose(got.scores, want.scores, atol=1e-4, rtol=1e-4)
        if policy.scorer is None or policy.scorer.needs_donor:  # elsewhere the transformers engine asks fewer models
            known = ~np.isnan(want.observed)
            np.testing.assert_allclose(np.array(got.observed)[known], np.array(want.observed)[known], atol=1e-3)
    return ours


@pytest.fixture(scope="module")
def fused(open_vllm):
    backend = open_vllm()
    layers = backend.engine.llm.llm_engine.vllm_config.compilation_config.static_forward_context
    assert {name.partition(".layers")[0] for name in layers} == {"model", "base.model"}  # as the guide's checkpoint has them
    return backend


@pytest.fixture(scope="module")
def reference(open_hf):
    return open_hf()


@pytest.mark.parametrize("name", KINDS)
def test_the_fused_pair_writes_the_same_texts(fused, reference, requests, name):
    assert_same(fused, reference, KINDS[name], requests[:6])


def test_two_ranks_write_the_same_texts(open_vllm, reference, requests):
    """The weights of both models are split; the gate runs on each rank. Few tokens: ranks that wait for each other spin."""
    few = [replace(request, max_new_tokens=8) for request in requests[1:3]]
    written = assert_same(open_vllm(tensor_parallel_size=2), reference, POLICIES["disagreement"], few)
    assert any(one.takeovers for one in written.values())


def test_texts_end_in_all_ways_while_requests_are_preempted_and_prompts_read_in_chunks(fused, requests, monkeypatch):
    scheduler = fused.engine.llm.llm_engine.engine_core.engine_core.scheduler
    preempt = MagicMock(wraps=scheduler._preempt_request)  # vLLM's metrics are of the engine that started last
    monkeypatch.setattr(scheduler, "_preempt_request", preempt)
    written = write(fused, POLICIES["disagreement"], requests)
    assert preempt.call_count > 3
    assert max(len(request.prompt) for request in requests) > 64  # tokens a step
    ended = {"token": 0, "limit": 0, "string": 0}
    for number, one in written.items():
        full = len(one.tokens) == requests[number].max_new_tokens
        ended["token" if one.tokens[-1] in fused.pair.eos_ids else "limit" if full else "string"] += 1
    assert all(ended.values()), ended


@pytest.mark.parametrize("name", ["disagreement", "random"])
def test_a_text_goes_on_from_any_of_its_tokens(fused, requests, name):
    policy, requests = POLICIES[name], requests[:9]
    whole = write(fused, policy, requests)
    begun = []
    for i, one in enumerate(requests):
        place = min(3 + i, len(whole[i].tokens) - 1)
        scores = tuple(whole[i].scores[max(0, place - policy.window) : place])
        begun.append(replace(one, begun=tuple(whole[i].tokens[:place]), begun_scores=scores))
    for i, generation in write(fused, policy, begun).items():
        place = len(begun[i].begun)
        assert generation.tokens == whole[i].tokens
        assert generation.taken_over[place:] == whole[i].taken_over[place:]
        np.testing.assert_allclose(generation.scores[place:], whole[i].scores[place:], atol=1e-4)
        assert len(generation.observed) == (len(generation.tokens) - place) * 5


@pytest.mark.parametrize("policy", ["disagreement", "base", "log_ratio", "ensemble"])
def test_log_likelihoods_are_the_same(fused, reference, prompts, policy):
    texts = [prompt[:length] for prompt, length in zip(prompts, (9, 1, 14, 5), strict=True)]
    for backend in (fused, reference):
        backend.policy = (POLICIES | METHODS)[policy]
    ours, theirs = (one.force(prompts, texts, seed=0, labels=["a", "b", "c", "d"]) for one in (fused, reference))
    for got, want in zip(ours, theirs, strict=True):
        assert got.taken_over.tolist() == want.taken_over.tolist()
        assert got.greedy.tolist() == want.greedy.tolist()
        np.testing.assert_allclose(got.log_probs, want.log_probs, atol=1e-4)


def test_calibrations_roll_out_the_host_and_score_it_in_one_pass(fused, reference, requests):
    fused.policy = POLICIES["disagreement"]
    asked = [request for request in requests if not request.until]
    found = {index: (tokens, scores) for index, tokens, scores in fused.roll_out(asked, seed=3)}
    alone = write_reference(reference, POLICIES["base"], tuple(asked))
    for name in ("ce", "rkl", "js", "surprise"):
        reference.policy = replace(POLICIES["disagreement"], score=name)
        texts = [request.prompt for request in asked], [alone[i].tokens for i in range(len(asked))]
        forced = reference.force(*texts, seed=0, labels=[request.label for request in asked])
        for index, want in enumerate(forced):
            assert found[index][0] == alone[index].tokens
            np.testing.assert_allclose(found[index][1][name], want.scores, atol=1e-4)


def test_stored_texts_are_read_by_both_models_as_by_transformers(open_vllm, open_hf, random_folders, prompts):
    fused, reference = open_vllm(**random_folders), open_hf(**random_folders)
    texts = [(prompt * 2)[:length] for prompt, length in zip(prompts, (90, 1, 40, 12), strict=True)]
    scores = [registered.get(name) for name in ("ce", "rkl", "js")]
    ours, theirs = (one.compare(scores, prompts, texts, ["a", "b", "c", "d"]) for one in (fused, reference))
    for got, want in zip(ours, theirs, strict=True):
        assert got.keys() == want.keys()
        for name, values in want.items():
            assert got[name].dtype == values.dtype
            if name in COUNTED:
                assert (got[name] == values).all(), name
            else:
                np.testing.assert_allclose(got[name], values, atol=1e-4, err_msg=name)


def test_a_text_that_is_longer_than_the_engines_context_is_named(open_vllm, random_folders, prompts):
    with pytest.raises(ArgumentError, match=r"max_model_len=384 is less than the 401 tokens of a text; give .* 401"):
        open_vllm(**random_folders).compare([], [prompts[0][:1]], [(1,) * 400], ["a"])


def test_another_architecture_depth_width_and_padded_vocabulary(open_vllm, open_hf, random_folders, requests):
    asked = [replace(request, until=()) for request in requests]
    assert_same(open_vllm(**random_folders), open_hf(**random_folders), POLICIES["rkl"], asked)


FAMILIES = {"olmo3": {"sliding_window": 12}, "smollm3": {}, "gemma3_text": {"sliding_window": 12}, "ministral3": {}}


@pytest.mark.parametrize(("base", "guide"), [("olmo3", "smollm3"), ("gemma3_text", "ministral3")])
def test_new_families_write_what_transformers_writes(open_vllm, open_hf, requests, tmp_path, base, guide):
    """OLMo 3 and SmolLM3 run by vLLM's Transformers backend, the others by classes of its own; their windows are passed."""
    asked = [replace(request, until=()) for request in requests[:6]]
    kinds = {"base": base, "guide": guide}
    sizes = {"vocab_size": 512, "head_dim": 32, "layers": 4}
    folders = {
        role: str(save_random_model(tmp_path / role, kind=kind, seed=number, **sizes, **FAMILIES[kind]))
        for number, (role, kind) in enumerate(kinds.items())
    }
    # First: vLLM wraps transformers' own classes.
    reference = open_hf(**folders)
    write_reference(reference, POLICIES["rkl"], tuple(asked))
    backend = open_vllm(**folders, num_gpu_blocks_override=64)
    written = assert_same(backend, reference, POLICIES["rkl"], asked)
    assert any(one.takeovers for one in written.values())


@pytest.mark.parametrize("role", ["base", "guide"])
def test_a_checkpoint_without_a_part_of_a_joined_projection_is_refused(open_vllm, demo_folders, tmp_path, role):
    """vLLM joins the three projections of an attention, and takes them as read after the first."""
    folder = shutil.copytree(demo_folders[role], tmp_path / role)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.self_attn.k_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    words = rf"lack 1 of their models' weights: {role}.model.layers.0.self_attn.qkv_proj.weight"
    with pytest.raises(ArgumentError, match=words):
        open_vllm(**{role: str(folder)})


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
            assert len(self.jobs) < 2 * (most * 5 // 4)  # with those of an engine that has ended
            self.jobs.append(job)

        def step(self):
            import ray

            node = ray.get_runtime_context().get_node_id()
            time.sleep(0.05)  # tasks come between steps
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

        async def write(self, job):
            await asyncio.sleep(0.03 * (job.number % 3))  # Ray may start tasks in any order
            return await super().write(job)

        async def abort(self):
            await asyncio.sleep(0.05)
            await super().abort()

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
def open_engines(cluster):
    """Opens engines, and closes all before the next test."""

    def open_some(actor=None, **arguments):
        parsed = ModelArguments.parse({"backend": "vllm", "data_parallel_size": 2, "data_parallel_backend": "ray"} | arguments)
        opened.append(Engines(parsed, POLICIES["disagreement"], actor or make_actor()))
        return opened[-1]

    opened = []
    yield open_some
    for one in opened:
        one.close()


def test_every_job_is_written_once_whichever_engine_ends_and_the_last_one_ends_the_run(open_engines, caplog):
    with pytest.raises(ArgumentError, match=r"data_parallel_size=3 needs 6 GPUs, and Ray has 4; give fewer engines"):
        open_engines(data_parallel_size=3, tensor_parallel_size=2)
    with pytest.raises(ArgumentError, match=r"^guide='x' has heads of 48$"):
        open_engines(make_actor(error="guide='x' has heads of 48"), data_parallel_size=1)
    engines, counted = open_engines(tensor_parallel_size=2), []
    first = engines.run([Job(number, None, None) for number in range(9)], lambda tokens, taken: counted.append(tokens))
    next(first)
    first.close()  # leaves no job behind
    assert counted == [1]
    texts = run(engines)
    assert sorted(texts) == list(range(20))
    gpus = {text.tokens[0]: text.passes for text in texts.values()}
    assert len(gpus) == 2 and all(map(len, gpus.values())) and len(set.union(*gpus.values())) == 4
    texts = engines.run([Job(number, None, None) for number in range(20)])
    first = next(texts)
    os.kill(first.tokens[0], signal.SIGKILL)
    assert sorted([first.number, *(text.number for text in texts)]) == list(range(20))
    assert "a vLLM engine has ended; the run goes on (engines left: 1)" in caplog.text
    (left,) = {text.tokens[0] for text in run(engines).values()}
    os.kill(left, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="every vLLM engine has ended"):
            run(engines)


def test_engines_of_a_cluster_write_the_texts_of_one_and_one_of_them_may_end(cluster, tight, reference, requests, caplog):
    from lm_eval_takeover.vllm.backend import VllmBackend

    find_node = lambda worker: (cluster.get_runtime_context().get_node_id(), os.getpid())  # noqa: E731 (an actor knows values)
    asked = requests[:6]
    with closing(open_with(VllmBackend, tight, {})(data_parallel_size=2)) as backend:
        actors = backend.engine.actors.values()
        nodes, pids = zip(*cluster.get([actor.__ray_call__.remote(find_node) for actor in actors]), strict=True)
        assert len({*nodes}) == 2
        written = assert_same(backend, reference, POLICIES["disagreement"], asked)
        forced = backend.force([asked[0].prompt] * 3, [written[0].tokens] * 3, seed=3, labels=["a"] * 3)
        assert len(forced) == 3 and torch.equal(forced[0].scores, forced[2].scores)
        os.kill(pids[0], signal.SIGKILL)
        again = {index: one.tokens for index, one in backend.generate(asked, seed=3)}
    assert again == {index: one.tokens for index, one in written.items()}
    assert "a vLLM engine has ended; the run goes on (engines left: 1)" in caplog.text

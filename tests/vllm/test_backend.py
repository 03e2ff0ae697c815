"""vLLM writes what the transformers engines write: tokens, takeovers, scores, observations, log-likelihoods."""

import shutil
from dataclasses import replace
from functools import cache
from unittest.mock import MagicMock

import numpy as np
import pytest
from helpers.pairs import METHODS, POLICIES, save_random_model
from safetensors.torch import load_file, save_file

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policies import Early
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import COUNTED
from lm_eval_takeover.vllm.slots import PAIR, SLOTS

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own
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
    names = {name.partition(".layers")[0] for name in layers} - {PAIR, SLOTS}
    assert names == {"model", "base.model"}  # as the guide's checkpoint has them
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

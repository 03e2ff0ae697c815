"""vLLM's model runner V2, which GPUs have, writes the same texts, fused and by drafts; on a CPU in the interpreter of Triton.

vLLM schedules each step before it knows what the one before wrote, as on a GPU.
"""

from dataclasses import replace

import numpy as np
import pytest
from helpers.pairs import METHODS, POLICIES, SAMPLED

from lm_eval_takeover.method.request import GREEDY, Request

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own
ALONE = {"policy": "guide", "tau": None, "kappa": None}
TIGHTER = {"num_gpu_blocks_override": 9, "max_model_len": 256}
BY_LOAD = [(1, 3, 4), (4, 4, 2), (5, 5, 1), (6, 6, 0)]  # tokens of a draft by the number of requests
DRAFTED = ("disagreement", "js", "entropy", "random", "early", "lossy", "ensemble")


@pytest.fixture(scope="module")
def jobs(prompts, tight, random_folders):
    """By name: the model, how its engine is started, the requests, names of policies, and the policies of the reference."""
    both = [Request(prompt, 0, 20, sampling, (), "a") for prompt in prompts for sampling in (GREEDY, SAMPLED)]
    few, one = (
        [replace(request, max_new_tokens=12) for request in both[:4]],
        [Request(prompts[0], 1, 8, SAMPLED, (), "b")],
    )
    six = [replace(request, max_new_tokens=14 - 2 * number) for number, request in enumerate(both[:6])]
    gate, reverse = POLICIES["disagreement"], replace(POLICIES["disagreement"], direction="reverse")
    drafted = [(POLICIES | METHODS)[name] for name in DRAFTED]
    return {
        "fused": ({}, TIGHTER, both, ["disagreement"], [gate]),
        "fused, alone": (ALONE, {}, one, [], [POLICIES["guide"]]),
        "drafts": ({}, TIGHTER | {"block_size": "auto", "ranges": BY_LOAD}, six, DRAFTED, drafted),
        "drafts, reverse": (random_folders | {"direction": "reverse"}, {"block_size": 3}, few, [], [reverse]),
        "drafts, alone": (random_folders | ALONE, {"block_size": 4}, few, [], [POLICIES["guide"]]),
    }  # fmt: skip


@pytest.fixture(scope="module")
def written(write_apart, jobs, tight):
    listed = [(tight | model | how, asked, names) for model, how, asked, names, _ in jobs.values()]
    return dict(zip(jobs, write_apart(listed, VLLM_USE_V2_MODEL_RUNNER="1"), strict=True))


@pytest.mark.parametrize("name", ["fused", "fused, alone", "drafts", "drafts, reverse", "drafts, alone"])
def test_the_texts_are_those_of_the_transformers_engines(written, jobs, open_hf, name):
    model, how, asked, _, policies = jobs[name]
    made = written[name]
    block = 4 if "ranges" in how else how.get("block_size", 1)
    assert made["runner_v2"] and made["async_scheduling"] and made["block"] == block
    reference, texts = open_hf(**model), iter(made["texts"])
    for reference.policy in policies:
        known = dict(reference.generate(asked, seed=3, rows=8))
        for number in range(len(asked)):
            tokens, taken, scores = next(texts)
            assert (tokens, taken) == (known[number].tokens, known[number].taken_over), (reference.policy, number)
            np.testing.assert_allclose(scores, known[number].scores, atol=1e-4)


@pytest.mark.parametrize("name", ["fused", "drafts"])
def test_requests_were_preempted_meanwhile(written, name):
    assert written[name]["preemptions"] > 2
    assert sum(map(sum, (taken for _, taken, _ in written[name]["texts"]))) > 3


def test_a_draft_is_verified_in_one_pass_and_passes_for_nothing_are_not_counted(written):
    for name, role in (("drafts", "guide"), ("drafts, reverse", "base"), ("drafts, alone", "guide")):
        tokens = sum(len(tokens) for tokens, _, _ in written[name]["texts"])
        assert 0 < written[name]["passes"][role] <= tokens - len(written[name]["texts"])  # the first follows the prompt

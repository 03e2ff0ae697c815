"""vLLM's model runner V2, which GPUs have by default, writes the same texts; on a CPU in the interpreter of Triton."""

import numpy as np
import pytest
from helpers.pairs import POLICIES, SAMPLED

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import GREEDY, Request

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own
ALONE = {"policy": "guide", "tau": None, "kappa": None}


@pytest.fixture(scope="module")
def asked(prompts):
    both = [Request(prompt, 0, 20, sampling, (), "a") for prompt in prompts for sampling in (GREEDY, SAMPLED)]
    return {"gate": both, "alone": [Request(prompts[0], 1, 12, SAMPLED, (), "b")]}


@pytest.fixture(scope="module")
def written(write_apart, asked, tight):
    """What V2 has written: by the gate, so tight that requests are preempted, and by the guide alone."""
    tighter = tight | {"num_gpu_blocks_override": 10, "max_model_len": 256}
    jobs = [(tighter | more, asked[name]) for name, more in (("gate", {}), ("alone", ALONE))]
    return dict(zip(asked, write_apart(jobs, VLLM_USE_V2_MODEL_RUNNER="1"), strict=True))


@pytest.mark.parametrize(("name", "policy"), [("gate", "disagreement"), ("alone", "guide")])
def test_the_texts_are_those_of_the_transformers_engines(written, asked, open_hf, name, policy):
    assert written[name]["runner_v2"]
    reference = open_hf(**ALONE) if name == "alone" else open_hf()
    reference.policy = POLICIES[policy]
    for number, want in reference.generate(asked[name], seed=3, rows=8):
        tokens, taken, scores = written[name]["texts"][number]
        assert (tokens, taken) == (want.tokens, want.taken_over), number
        np.testing.assert_allclose(scores, want.scores, atol=1e-4)


def test_requests_were_preempted_meanwhile(written):
    assert written["gate"]["preemptions"] > 2
    assert sum(map(sum, (taken for _, taken, _ in written["gate"]["texts"]))) > 3


def test_drafts_are_refused_on_it(monkeypatch, tight):
    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.pair.loading import load_pair
    from lm_eval_takeover.vllm.launch import plan_block

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    arguments = ModelArguments.parse(tight | {"block_size": 4})
    with pytest.raises(
        ArgumentError, match=r"block_size=4 .* need vLLM's model runner V1, and VLLM_USE_V2_MODEL_RUNNER=1"
    ):
        plan_block(arguments, load_pair(arguments), POLICIES["disagreement"])

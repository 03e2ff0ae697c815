"""Engines that the tests of this folder share, one of each configuration; without vLLM, tests that need it are left out.

They are tight on purpose: few cache blocks, so that requests are preempted and prefilled again, few tokens a step, so that
prompts are read in chunks, and fewer places than requests, so that these move about.
"""

from pathlib import Path

import pytest
from helpers import vllm_engines as shared
from helpers.pairs import POLICIES, SAMPLED, save_random_model
from helpers.vllm_engines import BY_HAND, list_left_out, open_with

from lm_eval_takeover.method.request import Request, Sampling

collect_ignore = list_left_out(Path(__file__).parent, {"test_block_rule.py"})
demo_folders, open_hf = shared.demo_folders, shared.open_hf
environment, nothing_is_collected = shared.environment_is_read_anew, shared.nothing_is_collected_by_hand
TIGHT = {"enforce_eager": True, "max_model_len": 384, "max_num_seqs": 6, "num_gpu_blocks_override": 14, "kv_block_size": 32,
         "max_num_batched_tokens": 64, "block_size": 1, "disable_log_stats": False}  # fmt: skip


@pytest.fixture(scope="session")
def wide_folders(tmp_path_factory):
    """Copies with wider heads, for vLLM's own class of draft models, and one size of vocabulary."""
    from padded_heads import write_demo

    return write_demo(tmp_path_factory.mktemp("wide"), vocab=512)


@pytest.fixture(scope="session")
def random_folders(tmp_path_factory):
    """Random weights of two architectures, depths, head sizes and padded vocabularies."""
    folder = tmp_path_factory.mktemp("random")
    guide = {"hidden_size": 48, "layers": 3, "head_dim": 64}
    return {
        "base": str(save_random_model(folder / "base", vocab_size=512, seed=1, kind="llama", head_dim=32)),
        "guide": str(save_random_model(folder / "guide", vocab_size=544, seed=2, **guide)),
    }


@pytest.fixture(scope="session")
def tight(demo_folders):
    """Model arguments of a tight engine of the demo pair."""
    return demo_folders | BY_HAND | TIGHT | {"backend": "vllm"}


@pytest.fixture(scope="session")
def open_vllm(tight):
    from lm_eval_takeover.vllm.backend import VllmBackend

    pytest.importorskip("vllm.entrypoints.llm")
    opened = {}
    yield open_with(VllmBackend, tight, opened)
    for backend in opened.values():
        backend.close()


@pytest.fixture(scope="session")
def requests(prompts, open_hf):
    """Greedy and sampled, alone and as samples of one prompt, which end at a stop string, an end token or the limit."""
    backend = open_hf()
    backend.policy = POLICIES["disagreement"]
    ((_, written),) = backend.generate([Request(prompts[0], 2, 150, SAMPLED)], seed=3, rows=1)
    heated, begun = Sampling(1.2, 0.9, 20), (*prompts[0], *written.tokens[:-20])
    asked = [Request(begun, 2, 40, SAMPLED, label="to its end")]
    for number, prompt in enumerate(prompts):
        label = f"prompt {number}"
        asked += [Request(prompt, sample, 40, SAMPLED, ("Step 2", "\n\n"), label) for sample in range(2)]
        asked += [Request(prompt, 0, 16, Sampling(), (), label), Request(prompt, 0, 24, heated, (), label)]
    return asked

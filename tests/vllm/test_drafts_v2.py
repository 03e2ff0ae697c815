"""vLLM's model runner V2, which GPUs have, writes the same texts, fused and by drafts; on a CPU in the interpreter of Triton.

vLLM schedules each step before it knows what the one before wrote, as on a GPU.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from helpers.pairs import METHODS, POLICIES, SAMPLED
from helpers.simulated_gpu import Recording, compute_words, draw

from lm_eval_takeover.kernels import operations
from lm_eval_takeover.method.request import GREEDY, Request
from lm_eval_takeover.vllm.settings import RequestSettings
from lm_eval_takeover.vllm.slots import Slots

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own
ALONE = {"policy": "guide", "tau": None, "kappa": None}
TIGHTER = {"num_gpu_blocks_override": 9, "max_model_len": 256}
BY_LOAD = [(1, 3, 4), (4, 4, 2), (5, 5, 1), (6, 6, 0)]  # tokens of a draft by the number of requests
DRAFTED = ("disagreement", "random", "lossy")


@pytest.fixture(scope="module")
def jobs(prompts, tight, random_folders, wide_folders):
    """By name: the model, how its engine is started, the requests, names of policies, and the policies of the reference."""
    both = [Request(prompt, 0, 14, sampling, (), "a") for prompt in prompts for sampling in (GREEDY, SAMPLED)]
    few = [replace(request, max_new_tokens=8) for request in both[:4]]
    six = [replace(request, max_new_tokens=12 - 2 * number) for number, request in enumerate(both[:6])]
    six[4] = Request((prompts[0] * 9)[:244], 0, 12, SAMPLED, label="to the end of the context")
    gate, reverse = POLICIES["disagreement"], replace(POLICIES["disagreement"], direction="reverse")
    drafted = [(POLICIES | METHODS)[name] for name in DRAFTED]
    return {
        "fused": ({}, TIGHTER, both, ["disagreement"], [gate]),
        "drafts": (wide_folders, TIGHTER | {"block_size": "auto", "ranges": BY_LOAD}, six, DRAFTED, drafted),
        "drafts, reverse": (random_folders | {"direction": "reverse"}, {"block_size": 3}, few, [], [reverse]),
        "drafts, alone": (random_folders | ALONE, {"block_size": 4}, few, [], [POLICIES["guide"]]),
    }  # fmt: skip


@pytest.fixture(scope="module")
def written(write_apart, jobs, tight):
    listed = [(tight | model | how, asked, names) for model, how, asked, names, _ in jobs.values()]
    return dict(zip(jobs, write_apart(listed, VLLM_USE_V2_MODEL_RUNNER="1"), strict=True))


@pytest.mark.parametrize("name", ["fused", "drafts", "drafts, reverse", "drafts, alone"])
def test_the_texts_are_those_of_the_transformers_engines(written, jobs, open_hf, name):
    model, how, asked, _, policies = jobs[name]
    made = written[name]
    block = 4 if "ranges" in how else how.get("block_size", 1)
    assert made["runner_v2"] and made["async_scheduling"] and made["block"] == block
    reference, texts = open_hf(**model), iter(made["texts"])
    for reference.policy in policies:
        known = dict(reference.generate(asked, seed=3, rows=8, traced=True))
        for number in range(len(asked)):
            (tokens, taken, scores, observed), want = next(texts), known[number]
            assert (tokens, taken) == (want.tokens, want.taken_over), (reference.policy, number)
            np.testing.assert_allclose(scores, want.scores, atol=1e-4)
            if reference.policy.scorer is None or reference.policy.scorer.needs_donor:
                both = ~np.isnan(want.observed)
                np.testing.assert_allclose(np.array(observed)[both], np.array(want.observed)[both], atol=1e-3)


@pytest.mark.parametrize("name", ["fused", "drafts"])
def test_requests_were_preempted_meanwhile(written, name):
    assert written[name]["preemptions"] > 2
    assert sum(map(sum, (taken for _, taken, *_ in written[name]["texts"]))) > 3


def test_a_draft_is_verified_in_one_pass_and_passes_for_nothing_are_not_counted(written):
    for name, role in (("drafts", "guide"), ("drafts, reverse", "base"), ("drafts, alone", "guide")):
        tokens = sum(len(tokens) for tokens, *_ in written[name]["texts"])
        assert 0 < written[name]["passes"][role] <= tokens - len(written[name]["texts"])  # the first follows the prompt


CPU, VOCAB, BLOCK = torch.device("cpu"), 40, 3


class SimulatedGraphs:
    """vLLM's manager of graphs, of 1, 2 and 4 rows, under a simulated capture."""

    def __init__(self):
        self.graphs, self.replays = {}, 0

    def capture(self, forward, *rest):
        for rows in (1, 2, 4):
            forward(rows, rows, {}, {}, None, None)
            with Recording() as graph:
                forward(rows, rows, {}, {}, None, None)
            self.graphs[Shape(rows)] = graph

    def run_fullgraph(self, shape):
        for graph in self.graphs.values():
            graph.spoil()
        self.graphs[shape].replay()
        self.replays += 1


class Shape(NamedTuple):
    num_tokens: int


@pytest.fixture
def kernels_on_cpu(monkeypatch):
    """Operations of the kernels in torch and NumPy: to a capture each is one operation."""
    library = torch.library.Library("lm_eval_takeover", "IMPL")
    library.impl("draw", draw, "CPU")
    library.impl("compute_words", compute_words, "CPU")
    monkeypatch.setattr(operations, "uses_kernels", lambda logits: True)
    yield
    library._destroy()


def make_drafter(slots, graphs):
    """Four rows of a model whose logits hang on a token and its position."""
    from lm_eval_takeover.vllm import drafts_v2 as module

    state = object.__new__(module.DraftingModelState)
    state.settings, state.slots = SimpleNamespace(vocab=VOCAB, block=BLOCK), slots
    state.drafted, state.kept_at = torch.zeros(5, BLOCK, VOCAB), torch.arange(5)

    class Model(module.StandaloneARSpeculator):
        def _run_model(self, ids, positions, *rest):
            return ids.long() * 64 + positions

        def _build_uniform_attn_metadata(self, *given, **named):
            return {}

    class Drafter(module.TakeoverSpeculator, Model):
        """Reads this model where it asks vLLM's class."""

    drafter = object.__new__(Drafter)
    table = torch.randn(VOCAB * 64, VOCAB, generator=torch.Generator().manual_seed(4)) * 3
    places, starts = torch.zeros(4, dtype=torch.int64), torch.full((5,), 99, dtype=torch.int32)
    buffers = SimpleNamespace(input_ids=places.int(), positions=places, seq_lens=places.int(), query_start_loc=starts)
    vars(drafter).update(
        model=SimpleNamespace(compute_logits=lambda hidden: table[hidden]),
        model_state=state,
        num_speculative_steps=BLOCK,
        max_model_len=64,
        input_buffers=buffers,
        idx_mapping=torch.full((4,), -1),
        current_draft_step=torch.tensor(0),
        draft_tokens=torch.zeros(4, BLOCK, dtype=torch.int64),
        expanded_positions=torch.zeros(4, dtype=torch.int64),
        last_token_indices=torch.arange(4),
        arange_gpu=torch.arange(5, dtype=torch.int32),
        kv_cache_config=object(),
        **dict.fromkeys(("temperature", "seeds", "draft_logits", "attn_groups")),
        block_tables=SimpleNamespace(compute_slot_mappings=lambda *given: None),
    )
    if graphs is not None:
        drafter._graphs, drafter._drawn = graphs, torch.zeros(4, dtype=torch.int64)
        drafter.capture()
    return drafter


@torch.inference_mode()
def test_a_captured_draft_is_the_eager_one_whatever_requests_come(monkeypatch, kernels_on_cpu):
    from vllm.v1.worker.gpu.spec_decode.standalone_ar import speculator as theirs

    monkeypatch.setattr(theirs, "build_slot_mappings_by_layer", lambda *given: {})
    random, graphs = np.random.default_rng(1), SimulatedGraphs()
    slots = Slots(POLICIES["disagreement"], capacity=4, device=CPU)
    drafters = [make_drafter(slots, graphs), make_drafter(slots, None)]
    samplings = [{}, {"temperature": 0.8}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 0.7, "top_k": 5}]
    tracks, seen = {}, set()
    for turn in range(12):
        index = turn % 4  # another request comes to this index of vLLM's
        if index in tracks:
            slots.leave(tracks[index])
        settings = RequestSettings(id=str(turn), **samplings[random.integers(4)])
        tracks[index] = slots.enter(settings, (turn,) * int(random.integers(1, 9)), index)
        rows = random.permutation(list(tracks))[: random.integers(1, len(tracks) + 1)]
        first, places = random.integers(0, VOCAB, len(rows)), random.integers(10, 40, len(rows))
        for drafter in drafters:
            drafter.idx_mapping[:] = torch.tensor([*rows, *[-1] * (4 - len(rows))])
            drafter.draft_tokens[: len(rows), 0] = torch.from_numpy(first)
            drafter.expanded_positions[: len(rows)] = torch.from_numpy(places)
            drafter.current_draft_step.fill_(0)
            drafter.input_buffers.seq_lens.fill_(0)
            batch = SimpleNamespace(
                seq_lens=torch.from_numpy(places), idx_mapping=drafter.idx_mapping[: len(rows)], seq_lens_cpu_upper_bound=None
            )
            drafter._multi_step_decode(batch, torch.zeros(len(rows)), len(rows), False, None)
        replayed, eager = (drafter.draft_tokens[: len(rows), 1:].tolist() for drafter in drafters)
        assert replayed == eager
        kept = [drafter.model_state.drafted[:4, 1:] for drafter in drafters]
        torch.testing.assert_close(*kept)
        assert drafters[0].input_buffers.query_start_loc.tolist() == [*range(len(rows)), *[len(rows)] * (5 - len(rows))]
        seen.update(map(tuple, eager))
    assert graphs.replays == 12 * (BLOCK - 1) and len(seen) > 12


def test_the_guides_output_is_kept_before_the_base_runs():
    """As in vLLM's graphs, which share memory: what a model returns is free for the next model's graphs."""
    from lm_eval_takeover.vllm.pair_model import TakeoverPairForCausalLM as Model

    pool = torch.zeros(3, 2)
    pair = SimpleNamespace(guide=lambda *given: pool.fill_(2), base=lambda *given: pool.fill_(1), base_width=2)
    assert Model.forward(pair, None, None).tolist() == [[1, 1, 2, 2]] * 3

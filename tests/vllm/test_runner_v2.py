"""vLLM's model runner V2, which GPUs have, writes the same texts, fused and by drafts; on a CPU in the interpreter of Triton.

vLLM schedules each step before it knows what the one before wrote, as on a GPU. On a simulated GPU a step of the gate waits for
nothing, and a captured draft is the eager one.
"""

import itertools
import json
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.pairs import METHODS, POLICIES, SAMPLED
from helpers.simulated_gpu import CUDA, Recording, compute_words, draw, simulated_gpu

from lm_eval_takeover.kernels import operations
from lm_eval_takeover.method.request import GREEDY, Request
from lm_eval_takeover.vllm.settings import RequestSettings
from lm_eval_takeover.vllm.slots import Slots

module = pytest.importorskip("lm_eval_takeover.vllm.drafts")  # needs vLLM, which warns as it is imported
Batch, Verifier = module.Batch, module.Verifier
pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own
ALONE = {"policy": "guide", "tau": None, "kappa": None}
TIGHTER = {"num_gpu_blocks_override": 9, "max_model_len": 256}
BY_LOAD = [(1, 3, 4), (4, 4, 2), (5, 5, 1), (6, 6, 0)]  # tokens of a draft by the number of requests
DRAFTED = ("disagreement", "random", "lossy")


@pytest.fixture(scope="module")
def jobs(prompts, tight, random_folders, wide_folders):
    """By name: the model, how its engine is started, the requests, names of policies, and the policies of the reference."""
    both = [Request(prompt, 0, 13, sampling, (), "a") for prompt in prompts for sampling in (GREEDY, SAMPLED)]
    few = [replace(request, max_new_tokens=7) for request in both[:2]]
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
def written(jobs, tight):
    """What each job wrote, in a process of its own; see write_apart.py."""
    plain = [[tight | model | how, [asdict(one) for one in asked], names] for model, how, asked, names, _ in jobs.values()]
    words = [sys.executable, str(Path(__file__).parent / "write_apart.py")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, input=json.dumps(plain), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(jobs, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", ["fused", "drafts", "drafts, reverse", "drafts, alone"])
def test_the_texts_are_those_of_the_transformers_engines(written, jobs, open_hf, name):
    model, how, asked, _, policies = jobs[name]
    made = written[name]
    block = 4 if "ranges" in how else how.get("block_size", 1)
    assert made["runner_v2"] and made["async_scheduling"] and made["block"] == block
    if "num_gpu_blocks_override" in how:
        assert made["preemptions"] > 2 and sum(sum(taken) for _, taken, *_ in made["texts"]) > 3
    if block > 1:  # a draft is verified in one pass, and passes for nothing are not counted; the first token follows the prompt
        passes = made["passes"]["base" if "reverse" in name else "guide"]
        assert 0 < passes <= sum(len(tokens) - 1 for tokens, *_ in made["texts"])
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


Shape = namedtuple("Shape", "num_tokens")
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


def test_records_that_nobody_takes_do_not_pile_up():
    slots = Slots(POLICIES["disagreement"], capacity=4, device=CPU)
    logits = {role: torch.randn(1, 1, 40) for role in ("base", "guide")}
    slots.most_held = 20
    for i in range(100):
        track = slots.enter(RequestSettings(id=str(i)), (1,))
        slots.decide([track], torch.tensor([0]), logits)
        slots.leave(track)
    assert [i for i in range(100) if slots.read(str(i), 0, 1) is not None] == list(range(80, 100))
    assert slots.read("99", 0, 1, last=True) is not None and slots.read("99", 0, 1, last=True) is None


def test_a_request_in_lockstep_takes_one_token_of_its_draft():
    """The engine compares such texts with those of whole drafts at its start."""
    slots, generator = Slots(POLICIES["guide"], capacity=2, device=CPU), torch.Generator().manual_seed(3)
    tracks = [slots.enter(RequestSettings(id=str(row), lockstep=bool(row)), (1,)) for row in range(2)]
    logits = torch.randn(1, 4, 40, generator=generator).expand(2, 4, 40).reshape(8, 40)

    def verify(drafted):
        fed = torch.tensor([[-1, *drafted]] * 2).flatten()
        batch = Batch(tracks, torch.tensor([0, 0]), torch.tensor([0, 4]), fed, [3, 3], [True, True])
        return Verifier(slots, 40, None).verify(batch, logits)

    tokens, _ = verify([0, 0, 0])
    assert verify(tokens[0, :3].tolist())[1].tolist() == [4, 1]


SLOTTED = [
    RequestSettings(id="0", temperature=0.8, top_p=0.95, traced=True),
    RequestSettings(id="1"),
    RequestSettings(id="2", sample=1, temperature=0.8, top_p=0.95, min_p=0.1, traced=True, begun=2, begun_scores=(0.5, 0.7)),
    RequestSettings(id="3", forced=(3, 1, 4, 1, 5)),
]


def decide(policy, device, gpu, drafts):
    """The tokens and records of these requests, of which one is preempted, on logits that are always the same."""
    generator, written, read = torch.Generator().manual_seed(1), [], []
    place = gpu.place if device.type == "cuda" else lambda *values: None
    kept = torch.randn(5, 3, 60, generator=generator) * 3
    counts = [3, 0, 3, 2]  # of drafted tokens, which are all the same
    first, fed = torch.tensor([0, 4, 5, 9]), torch.full((12,), 5)
    place(kept, first, fed)
    slots = Slots(policy, capacity=4, device=device)
    verifier = Verifier(slots, 60, kept if policy.host else None)
    for step in range(30):
        logits = {role: torch.randn(12 if drafts else 4, 1, 60, generator=generator) * 3 for role in policy.roles}
        positions = torch.full((4,), step)
        place(positions, *logits.values())
        if step == 7:
            slots.leave(tracks[2])  # noqa: F821 (bound by the first step)
        tracks = [slots.enter(one, (1, 2, 3, int(one.id))) for one in SLOTTED]
        gpu.counts = device.type == "cuda"
        if drafts:
            tokens, stands = verifier.verify(Batch(tracks, positions, first, fed, counts, [True] * 4), logits["guide"][:, 0])
        else:
            tokens, stands = slots.decide(tracks, positions, logits).tokens, None
        gpu.counts = False
        written.append([tokens.tolist(), None if stands is None else stands.tolist()])
    for one in SLOTTED:
        read.append(np.frombuffer(slots.read(one.id, 0, 20, last=True)[0], np.float32))
    return written, read


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("name", ["disagreement", "js", "random", "guide"])
def test_a_step_waits_for_nothing_and_writes_the_same(monkeypatch, name, drafts):
    policy = POLICIES[name]
    expected, known = decide(policy, CPU, SimpleNamespace(), drafts)
    with simulated_gpu(SimpleNamespace(members=[]), monkeypatch) as gpu:
        written, read = decide(policy, CUDA, gpu, drafts)
    assert not gpu.faults, sorted(set(gpu.faults))
    assert gpu.waits == 0
    assert written == expected
    for one, other in zip(read, known, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("name", ["disagreement", "random", "guide"])
def test_no_request_compiles_a_kernel_that_the_rehearsal_has_not(monkeypatch, name, drafts):
    """What a kernel is compiled for: its constants, and which tensors it has and of what kind."""
    policy, compiled = POLICIES[name], set()
    logits = {role: torch.randn(4, 1 + drafts, 60) for role in (("base", "guide") if drafts and policy.host else policy.roles)}
    ids, positions, kept = torch.full((4, 1 + drafts), 5), torch.zeros(4, dtype=torch.int64), torch.zeros(5, 2, 60)
    pairs = (False, True)[: len(logits)]  # what asks both models
    kinds = [{"forced": (3, 1), "compared": compared} for compared in pairs]
    for temperature, top_p, top_k, scored in itertools.product((0.0, 0.7), (1.0, 0.9), (0, 5), pairs):
        kinds.append({"temperature": temperature, "top_p": top_p, "top_k": top_k, "scored": scored, "traced": not scored})
    with simulated_gpu(SimpleNamespace(members=[]), monkeypatch) as gpu:
        for kernel, run in list(vars(gpu.kernels).items()):

            def note(*given, kernel=kernel, run=run):
                compiled.add((kernel, *(one.dtype if isinstance(one, torch.Tensor) else one for one in given)))
                return run(*given)

            setattr(gpu.kernels, kernel, note)
        gpu.place(*logits.values(), ids, positions, kept)
        slots = Slots(policy, capacity=4, device=CUDA)
        drafted = kept if policy.host else None
        Verifier(slots, 60, drafted).rehearse(2, logits["guide"][:, 0]) if drafts else slots.rehearse(logits)
        known = set(compiled)
        for kind in kinds:
            how = RequestSettings(**kind)
            tracks = [slots.enter(replace(how, id=f"{kind}{row}"), (1,)) for row in range(4)]
            slots.decide(tracks, positions, logits, drafted=ids if drafts and policy.host else None)
            for asked in (None, positions == 0) if drafts else ():  # the drafter's draw, and that of rows without a draft
                slots.draw(slots.place(tracks), positions, logits["guide"][:, 0], asked)
            for track in tracks:
                slots.leave(track)
    assert compiled == known and len(known) < 16

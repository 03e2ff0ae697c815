"""vLLM's model runner V2, which GPUs have, writes the same texts, fused and by drafts; on a CPU in the interpreter of Triton.

vLLM schedules each step before it knows what the one before wrote, as on a GPU. On a simulated GPU a step of the gate waits for
nothing, and a captured draft is the eager one.
"""

import itertools
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.pairs import METHODS, POLICIES, SAMPLED
from helpers.processes import run
from helpers.simulated_gpu import CUDA, Recording, compute_words, draw, simulated_gpu

from lm_eval_takeover.kernels import operations
from lm_eval_takeover.method.request import GREEDY, Request
from lm_eval_takeover.vllm.settings import RequestSettings
from lm_eval_takeover.vllm.slots import Slots

module = pytest.importorskip("lm_eval_takeover.vllm.drafts")  # needs vLLM, which warns as it is imported
Batch, Verifier = module.Batch, module.DraftVerifier
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
    done = run([sys.executable, str(Path(__file__).parent / "write_apart.py")], status=0, input=json.dumps(plain))
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


CPU, VOCAB, BLOCK, ROWS, COLUMNS = torch.device("cpu"), 40, 4, 6, 64


class Attention:
    """vLLM's blocks (that of request i is i + 1), layers and builder. Like FlashAttention 3, it reads what it was told before."""

    layer_names, kv_cache_group_id, kv_cache_spec, cp_size, supports_update_block_table = ["layer"], 0, None, 1, False

    def __init__(self):
        self.lengths, self.blocks = torch.zeros(2, ROWS, dtype=torch.int32)
        self.input_block_tables = [torch.zeros(ROWS, 1, dtype=torch.int32)]
        self.slot_mappings = torch.zeros(1, COLUMNS, dtype=torch.int64)

    def get_metadata_builder(self, *ubatch):
        return self

    def build_metadata(self, common, *rest, **options):
        self.map_to_kernel_block_table(common.block_table_tensor)
        self.update_draft_decode_metadata({"layer": common})
        return common

    build_metadata_for_cudagraph_capture = build_metadata

    def map_to_kernel_block_table(self, table):
        self.blocks[: len(table)] = table[:, 0]

    def update_draft_decode_metadata(self, metadata):
        self.lengths[: len(metadata["layer"].seq_lens)] = metadata["layer"].seq_lens

    def get_dummy_block_tables(self, rows):
        return (self.input_block_tables[0][:rows].zero_(),)

    def get_dummy_slot_mappings(self, tokens):
        return self.slot_mappings.fill_(-1)[:, :tokens]

    def compute_slot_mappings(self, indices, starts, positions, tokens, out=None):
        places = self.slot_mappings if out is None else out
        rows = torch.searchsorted(starts[1:], torch.arange(tokens), right=True)  # behind the last row: their number
        indices = torch.nn.functional.pad(indices, (0, 1), value=-1)[rows]
        places.fill_(-1)[0, :tokens] = torch.where(indices >= 0, (indices + 1) * COLUMNS + positions[:tokens], -1)
        return places[:, :tokens]


@pytest.fixture
def replays(monkeypatch):
    """What vLLM's managers of graphs replay, under a simulated capture. To it a kernel is one operation of torch or NumPy."""
    library, pool, replayed = torch.library.Library("lm_eval_takeover", "IMPL"), [], []
    library.impl("draw", draw, "CPU")
    library.impl("compute_words", compute_words, "CPU")

    def prepare(input_buffers, input_batch, last_sampled, num_rejected, *filled, **named):
        buffers = [*(filled or named.values())][:3]
        for buffer, values in zip([*buffers, input_buffers.query_start_loc], input_batch.expanded, strict=True):
            buffer[: len(values)] = torch.from_numpy(values)
        input_buffers.seq_lens.zero_()[: input_batch.num_reqs] = input_batch.seq_lens + 1
        return len(input_batch.expanded[0])

    def capture(self, create, name):
        for shape in itertools.chain(*self._capture_descs.values()):
            forward = create(shape, warmup=False)
            with Recording() as self.graphs[shape]:
                forward(None)
            pool.append(self.graphs[shape])

    def replay(self, shape):
        for graph in pool:
            graph.spoil()
        self.graphs[shape].replay()
        replayed.append(shape)

    gpu = "vllm.v1.worker.gpu"
    monkeypatch.setattr(operations, "uses_kernels", lambda logits: True)
    monkeypatch.setattr(f"{gpu}.spec_decode.speculator._target_feeds_hc_residual", lambda config: False)
    for user in (f"{gpu}.spec_decode.standalone_ar.speculator", module.__name__):
        monkeypatch.setattr(f"{user}.prepare_prefill_inputs", prepare)
    for name in ("get_pp_group", "current_platform"):
        monkeypatch.setattr(f"{gpu}.cudagraph_utils.{name}", Mock())
    monkeypatch.setattr(f"{gpu}.cudagraph_utils.CudaGraphManager.capture", capture)
    monkeypatch.setattr(f"{gpu}.cudagraph_utils.CudaGraphManager.run_fullgraph", replay)
    yield replayed
    library._destroy()


def make_drafter(slots, updates=True, threshold=None):
    """Six rows of a model whose logits hang on a token and on all tokens before it, which it reads from its cache."""
    table = torch.randn(VOCAB * 64, VOCAB, generator=torch.Generator().manual_seed(4)) * 3
    columns, codes, group = torch.arange(COLUMNS), torch.arange(VOCAB) * 64, Attention()
    group.reorder_batch_threshold = threshold

    def run_model(ids, positions, metadata, places, *rest):
        ends = metadata["layer"].query_start_loc[1:]
        rows = torch.searchsorted(ends, torch.arange(len(ids)), right=True).clamp(max=len(ends) - 1)
        drafter.cache[places["layer"]] = ids.long()  # place -1 is behind the blocks
        seen = (columns <= positions[:, None]) & (columns < group.lengths[rows, None])
        before = drafter.cache[:-1].view(ROWS + 1, COLUMNS)[group.blocks[rows]] * seen * (columns + 1)
        return (codes.index_select(0, ids) + before.sum(1)) % len(table)

    config = Mock(num_speculative_tokens=BLOCK, watermark_config=None)
    config.speculative_config = Mock(num_speculative_tokens=BLOCK, num_speculative_tokens_per_batch_size=BY_LOAD)
    config.speculative_config.enable_adaptive_verification = False
    config.scheduler_config = Mock(max_num_seqs=ROWS, max_num_batched_tokens=COLUMNS)
    config.compilation_config = Mock(cudagraph_capture_sizes=[1, 2, 4, 6, 8, 12, 16, 24, 36], max_cudagraph_capture_size=36)
    config.parallel_config = Mock(data_parallel_size=1, decode_context_parallel_size=1)
    config.model_config.max_model_len = COLUMNS
    state = object.__new__(module.DraftingModelState)
    state.settings, state.slots = SimpleNamespace(vocab=VOCAB, block=BLOCK), slots
    state.drafted, state.kept_at = torch.zeros(ROWS + 1, BLOCK, VOCAB), torch.arange(ROWS + 1)
    state.supports_mm_inputs, state.model_config = False, config.model_config
    drafter = module.TakeoverSpeculator(config, CPU)
    drafter.model, drafter._run_model = SimpleNamespace(compute_logits=lambda hidden: table[hidden]), run_model
    drafter.model_state, drafter.block_tables, drafter.attn_groups = state, group, [[group]]
    drafter.kv_cache_config = SimpleNamespace(kv_cache_groups=[group])
    drafter.cache, drafter.expanded_slot_mappings = torch.zeros((ROWS + 1) * COLUMNS + 1).long(), torch.zeros(1, COLUMNS).long()
    drafter.last_token_indices.fill_(COLUMNS)  # as a batch of vLLM's may leave it
    drafter.supports_decode_metadata_update = updates
    drafter.init_cudagraph_manager(module.CUDAGraphMode.FULL)
    drafter.capture()
    return drafter


@torch.inference_mode()
def test_a_captured_draft_is_the_eager_one_whatever_requests_come(replays):
    """Two replays; one where rows read different numbers of tokens, or the draft has one token."""
    random, slots = np.random.default_rng(1), Slots(POLICIES["disagreement"], capacity=ROWS, device=CPU)
    drafters = [make_drafter(slots), make_drafter(slots, updates=False)]
    rules, nothing = torch.tensor([[0, 1, 0, 0], [0.8, 1, 0, 0], [1, 0.9, 0, 0], [0.7, 1, 5, 0]]), torch.zeros(ROWS).long()
    for turn, index in enumerate([*range(ROWS)] * 4):  # another request comes to this index of vLLM's
        slots.keys[index] = torch.from_numpy(random.integers(2**62, size=(2, 2)))
        slots.rules[index], slots.starts[index] = rules[turn % 4], turn
        rows = random.permutation(ROWS)[: index + 1]
        read = np.resize(random.choice([1, 3, 5], 1 if turn % 7 < 4 else len(rows)), len(rows))
        known, rejected, ends = random.integers(9, COLUMNS - 5, len(rows)), random.integers(0, read), np.cumsum(read + 1)
        length = int(random.choice([next(length for _, most, length in BY_LOAD if len(rows) <= most), 1]))
        behind, total, mapping = (0, ROWS - len(rows)), ends[-1], torch.from_numpy(rows)
        positions = (known - ends + read + 1).repeat(read + 1) + np.arange(total)
        batch = SimpleNamespace(num_reqs=len(rows), num_scheduled_tokens=read, idx_mapping=mapping, idx_mapping_np=rows)
        batch.query_start_loc_np = np.array([0, *np.cumsum(read)])
        batch.seq_lens = batch.seq_lens_cpu_upper_bound = torch.from_numpy(known + read)
        starts = np.pad([0, *ends], behind, constant_values=total)
        batch.expanded = random.integers(0, VOCAB, total), positions, np.pad(ends - 1 - rejected, behind), starts
        given = batch, *[None] * 5, torch.from_numpy(rejected), *[nothing] * 4
        before, made = len(replays), []
        for drafter in drafters:
            drafter.block_tables.input_block_tables[0][: len(rows), 0] = mapping + 1
            drafts = drafter.propose(*given, num_speculative_tokens=length)
            parts = drafts[:, : max(length, 1)], drafter.model_state.drafted[:ROWS, : max(length, 1)], drafter.cache[:-1]
            made.append([part.clone() for part in parts])
            drafts[:, length:] = -1  # as vLLM's runner
        torch.testing.assert_close(*made)
        assert len(replays) == before + (len({*read}) == 1) + (length > 1)
    partly = make_drafter(slots, threshold=BLOCK + 1)
    assert drafters[1]._firsts is drafters[1]._others is partly._firsts is None and partly._others.graphs


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
            tokens, stands = slots.decide(tracks, positions, logits), None
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

"""What the gate inside vLLM does on a GPU, on a simulated one: no wait, little memory, the same tokens; without vLLM."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.pairs import METHODS, POLICIES
from helpers.simulated_gpu import CUDA, simulated_gpu
from torch.utils._python_dispatch import TorchDispatchMode

from lm_eval_takeover.decoding.gate_step import emit
from lm_eval_takeover.kernels import operations
from lm_eval_takeover.method.policy import Block
from lm_eval_takeover.vllm.drafts import Verifier
from lm_eval_takeover.vllm.settings import RequestSettings, change_policy, name_policy
from lm_eval_takeover.vllm.slots import Slots

CPU = torch.device("cpu")
REQUESTS = [
    RequestSettings(id="0", temperature=0.8, top_p=0.95, traced=True),
    RequestSettings(id="1"),
    RequestSettings(id="2", sample=1, temperature=0.8, top_p=0.95, traced=True, begun=2, begun_scores=(0.5, 0.7)),
    RequestSettings(id="3", forced=(3, 1, 4, 1, 5)),
]


def write(policy, device, place, steps=30, drafts=1):
    """The tokens and records of these requests, of which one is preempted, on logits that are always the same."""
    generator, written, read = torch.Generator().manual_seed(1), [], []
    slots = Slots(policy, capacity=4, device=device)
    for step in range(steps):
        logits = {role: torch.randn(4, drafts, 60, generator=generator) * 3 for role in policy.roles}
        place(*logits.values())
        if step == 7:
            slots.leave(tracks[2])  # noqa: F821 (bound by the first step)
        tracks = [slots.enter(one, (1, 2, 3, int(one.id))) for one in REQUESTS]
        drafted = torch.full((4, drafts), 5) if drafts > 1 else None
        if drafted is not None:
            place(drafted)
        positions = torch.full((4,), step)
        place(positions)
        written.append(slots.decide(tracks, positions, logits, drafted=drafted).tokens)
    for one in REQUESTS:
        read.append(np.frombuffer(slots.read(one.id, 0, 20, last=True)[0], np.float32))
    return written, read


@pytest.mark.parametrize("drafts", [1, 4])
@pytest.mark.parametrize("name", ["disagreement", "js", "random", "guide"])
def test_a_step_waits_for_nothing_and_writes_the_same(monkeypatch, name, drafts):
    policy = POLICIES[name]
    expected, known = write(policy, CPU, lambda *values: None, drafts=drafts)
    with simulated_gpu(SimpleNamespace(members=[]), monkeypatch) as gpu:
        decide, counted = Slots.decide, []

        def counting(self, *arguments, **options):
            gpu.counts, gpu.waits = True, 0
            try:
                return decide(self, *arguments, **options)
            finally:
                gpu.counts = False
                counted.append(gpu.waits)

        monkeypatch.setattr(Slots, "decide", counting)
        written, read = write(policy, CUDA, gpu.place, drafts=drafts)
    assert not gpu.faults, sorted(set(gpu.faults))
    assert set(counted) == {0}
    assert [one.tolist() for one in written] == [one.tolist() for one in expected]
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


def test_slots_hold_a_window_on_the_device_whatever_the_length_of_the_texts():
    slots = Slots(POLICIES["disagreement"], capacity=1024, device=CPU)
    held = sum(one.nbytes for one in vars(slots).values() if isinstance(one, torch.Tensor))
    assert held < 2**26
    track = slots.enter(REQUESTS[1], (1,))
    for step in (0, 5000):
        slots.decide([track], torch.tensor([step]), {role: torch.randn(1, 1, 9) for role in ("base", "guide")})
    assert held == sum(one.nbytes for one in vars(slots).values() if isinstance(one, torch.Tensor))


@pytest.mark.parametrize("ring", [64, 2**13])
def test_a_request_has_its_own_window_which_may_be_long(monkeypatch, ring):
    """Wider than the slots hold at first; a request that was there before keeps its own."""
    monkeypatch.setattr("lm_eval_takeover.vllm.slots._RING", ring)
    policy, generator = POLICIES["disagreement"], torch.Generator().manual_seed(2)
    slots, changes = Slots(policy, capacity=4, device=CPU), {"tau": 0.0, "kappa": 1.0, "window": 100}
    wide = RequestSettings(id="w", policy=name_policy(change_policy(policy, changes)))
    tracks, found = [slots.enter(REQUESTS[1], (2,))], []
    for step in range(150):
        if step == 30:
            tracks.append(slots.enter(wide, (1,)))
        spread = 1 + step / 20  # scores grow, so that a window of other positions has another mean
        logits = {role: spread * torch.randn(len(tracks), 1, 9, generator=generator) for role in ("base", "guide")}
        found.append(slots.decide(tracks, torch.tensor([step, step - 30][: len(tracks)]), logits).taken.flatten().tolist())
    for place, gate, fired in ((0, policy.gate, found), (1, tracks[1].policy.gate, found[30:])):
        count, known = len(fired), slots.read(tracks[place].settings.id, 0, len(fired), last=True)
        scores = np.frombuffer(known[0], np.float32).reshape(count, -1)[:, 0]
        means = [
            gate.kappa * scores[max(0, t - gate.window) : t].mean(dtype=np.float64) if t else -np.inf for t in range(count)
        ]
        assert [each[place] for each in fired] == [s > gate.tau and s > mean for s, mean in zip(scores, means, strict=True)]


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that was made."""

    found = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for one, told in zip(made if isinstance(made, (list, tuple)) else [made], function._schema.returns, strict=False):
            if isinstance(one, torch.Tensor) and told.alias_info is None:
                self.found = max(self.found, one.nbytes)
        return made


@pytest.mark.parametrize("name", ["disagreement", "js", "rkl", "ensemble"])
def test_a_draft_makes_no_copies_of_its_logits(monkeypatch, name):
    """512 positions, in wider blocks, of a real vocabulary without values, where every question for one would raise. A plain draw
    makes numbers of 8 bytes for every token of every position, ten times: 6 GB here.

    A mix of both models is a copy, of few positions at a time.
    """
    monkeypatch.setattr(operations, "uses_kernels", lambda logits: True)
    rows, count, vocab = 64, 8, 151_936
    read = torch.zeros(rows, count + 4, vocab + 64, dtype=torch.bfloat16, device="meta")[:, :count, :vocab]
    logits = {"base": read, "guide": read}
    here = torch.zeros(rows, count, dtype=torch.int64, device="meta")
    block = Block(here, here.float(), torch.zeros(rows, 10, device="meta"))
    policy = (POLICIES | METHODS)[name]
    rules = operations.Rules(torch.zeros(rows, 3, device="meta"), truncates=True, selects=False)
    with Largest() as mode:
        emit(policy, rules, logits["base"], logits["guide"], block, here, drafted=here, traced=True)
    assert mode.found < (2**30 if name == "ensemble" else 2**20)

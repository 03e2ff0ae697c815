"""The state of requests by slot, and what the gate inside vLLM does with it; without vLLM.

Requests come, move and go, and their texts stay the same. On a simulated GPU a step waits for nothing.
"""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.pairs import POLICIES
from helpers.simulated_gpu import CUDA, simulated_gpu

from lm_eval_takeover.vllm.drafts import Batch, Verifier
from lm_eval_takeover.vllm.settings import RequestSettings, change_policy, describe_policy
from lm_eval_takeover.vllm.slots import Slots

CPU = torch.device("cpu")
SAMPLED = RequestSettings(id="a", temperature=0.8, top_p=0.95, traced=True)
OTHERS = [RequestSettings(id=f"other {i}", temperature=0.5 * i) for i in range(3)]


@pytest.fixture
def logits():
    """Of both models at 24 positions: `[positions, 1, vocab]`."""
    generator = torch.Generator().manual_seed(5)
    return [{role: torch.randn(1, 1, 40, generator=generator) * 3 for role in ("base", "guide")} for _ in range(24)]


def new_slots():
    return Slots(POLICIES["disagreement"], capacity=4, device=CPU)


def write_alone(logits):
    slots = new_slots()
    track = slots.enter(SAMPLED, (1, 2, 3))
    tokens = [slots.decide([track], torch.tensor([t]), logits[t]).tokens.item() for t in range(24)]
    return tokens, np.frombuffer(slots.read("a", 0, 24, last=True)[0], np.float32)


def test_neighbours_preemption_and_repeated_positions_change_nothing(logits):
    tokens, want = write_alone(logits)
    slots = new_slots()
    track = slots.enter(SAMPLED, (1, 2, 3))
    neighbour = slots.enter(OTHERS[1], (4,))
    again = []
    for t in range(24):
        if t in (5, 11):  # out of the batch, whose slots others take meanwhile
            slots.leave(track)
            slots.leave(neighbour)
            others = [slots.enter(replace(one, id=f"{t} {i}"), (9, i)) for i, one in enumerate(OTHERS)]
            three = {role: one.expand(3, 1, 40) for role, one in logits[0].items()}
            slots.decide(others, torch.zeros(3, dtype=torch.long), three)
            for other in others:
                slots.leave(other)
            neighbour = slots.enter(OTHERS[1], (4,))
            track = slots.enter(SAMPLED, (1, 2, 3))
            # a part of the prefill shows the gate other logits at the same position
            slots.decide([track], torch.tensor([t]), logits[(t + 7) % 24])
        both = {role: torch.cat([logits[(t + 3) % 24][role], one]) for role, one in logits[t].items()}
        again.append(slots.decide([neighbour, track], torch.tensor([t, t]), both).tokens[1].item())
    assert again == tokens
    np.testing.assert_array_equal(np.frombuffer(slots.read("a", 0, 24, last=True)[0], np.float32), want)


def test_records_that_nobody_takes_do_not_pile_up(logits):
    slots = new_slots()
    slots.most_held = 20
    for i in range(100):
        track = slots.enter(RequestSettings(id=str(i)), (1,))
        slots.decide([track], torch.tensor([0]), logits[0])
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


REQUESTS = [
    RequestSettings(id="0", temperature=0.8, top_p=0.95, traced=True),
    RequestSettings(id="1"),
    RequestSettings(id="2", sample=1, temperature=0.8, top_p=0.95, min_p=0.1, traced=True, begun=2, begun_scores=(0.5, 0.7)),
    RequestSettings(id="3", forced=(3, 1, 4, 1, 5)),
]


def write(policy, device, gpu, drafts):
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
        tracks = [slots.enter(one, (1, 2, 3, int(one.id))) for one in REQUESTS]
        gpu.counts = device.type == "cuda"
        if drafts:
            tokens, stands = verifier.verify(Batch(tracks, positions, first, fed, counts, [True] * 4), logits["guide"][:, 0])
        else:
            tokens, stands = slots.decide(tracks, positions, logits).tokens, None
        gpu.counts = False
        written.append([tokens.tolist(), None if stands is None else stands.tolist()])
    for one in REQUESTS:
        read.append(np.frombuffer(slots.read(one.id, 0, 20, last=True)[0], np.float32))
    return written, read


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("name", ["disagreement", "js", "random", "guide"])
def test_a_step_waits_for_nothing_and_writes_the_same(monkeypatch, name, drafts):
    policy = POLICIES[name]
    expected, known = write(policy, CPU, SimpleNamespace(), drafts)
    with simulated_gpu(SimpleNamespace(members=[]), monkeypatch) as gpu:
        written, read = write(policy, CUDA, gpu, drafts)
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
    wide = RequestSettings(id="w", policy=describe_policy(change_policy(policy, changes)))
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

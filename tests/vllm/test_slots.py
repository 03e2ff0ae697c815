"""The state of requests by slot, without vLLM: what stays the same while they come, move and go."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.pairs import POLICIES

from lm_eval_takeover.decoding.gate_step import COLUMNS, REST
from lm_eval_takeover.method.observations import COMPARED
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.vllm.settings import RequestSettings
from lm_eval_takeover.vllm.slots import LEAST_PARKED, Slots

SAMPLED = RequestSettings(id="a", temperature=0.8, top_p=0.95, traced=True)
OTHERS = [RequestSettings(id=f"other {i}", temperature=0.5 * i) for i in range(3)]
POLICY = POLICIES["disagreement"]


@pytest.fixture
def logits():
    """Of both models at 24 positions: `[positions, 1, vocab]`."""
    generator = torch.Generator().manual_seed(5)
    return [{role: torch.randn(1, 1, 40, generator=generator) * 3 for role in ("base", "guide")} for _ in range(24)]


def new_slots(**options):
    return Slots(POLICY, capacity=4, device=torch.device("cpu"), **options)


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


def test_comparisons_are_wider_and_survive_a_preemption_among_others(logits):
    slots = new_slots()
    compared = RequestSettings(id="a", forced=(7, 8), compared=True)
    neighbour = slots.enter(OTHERS[1], (4,))
    for t in range(2):
        track = slots.enter(compared, (1,))
        both = {role: one.expand(2, 1, 40) for role, one in logits[t].items()}
        emitted = slots.decide([neighbour, track], torch.tensor([t, t]), both)
        assert emitted.tokens[1].item() == 7 + t
        slots.leave(track)
    table = np.frombuffer(slots.read("a", 0, 2, last=True)[0], np.float32).reshape(2, -1)
    found = dict(zip([*registered.names(), *COMPARED], table[:, REST:].T, strict=True))
    for t in range(2):
        base, guide = (logits[t][role][0, 0] for role in ("base", "guide"))
        assert found["base_logprob"][t] == pytest.approx(base.log_softmax(-1)[7 + t].item(), abs=1e-5)
        assert found["guide_rank"][t] == (guide > guide[7 + t]).sum() + 1
        assert found["ce"][t] == pytest.approx(registered.get("ce")(base, guide).item(), abs=1e-5)
    assert len(np.frombuffer(slots.read(OTHERS[1].id, 0, 2, last=True)[0], np.float32)) == 2 * COLUMNS


def test_records_that_nobody_takes_do_not_pile_up(logits):
    slots = new_slots(most_parked=20 * LEAST_PARKED)
    for i in range(100):
        track = slots.enter(RequestSettings(id=str(i)), (1,))
        slots.decide([track], torch.tensor([0]), logits[0])
        slots.leave(track)
    assert [i for i in range(100) if slots.read(str(i), 0, 1) is not None] == list(range(80, 100))
    assert slots.read("99", 0, 1, last=True) is not None and slots.read("99", 0, 1, last=True) is None


def test_a_whole_batch_that_is_preempted_keeps_its_records(logits):
    slots = new_slots(most_parked=LEAST_PARKED)
    tracks = [slots.enter(RequestSettings(id=str(i)), (i,)) for i in range(4)]
    four = {role: one.expand(4, 1, 40) for role, one in logits[0].items()}
    slots.decide(tracks, torch.zeros(4, dtype=torch.long), four)
    for track in tracks:
        slots.leave(track)
    assert [slots.enter(RequestSettings(id=str(i)), (i,)) for i in range(4)] == tracks

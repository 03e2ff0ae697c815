"""Which drafted tokens stand: those of one token a pass. vLLM is not needed."""

import numpy as np
import pytest
import torch
from helpers.pairs import POLICIES

from lm_eval_takeover.vllm import drafts as module
from lm_eval_takeover.vllm.drafts import Batch, Verifier
from lm_eval_takeover.vllm.settings import RequestSettings
from lm_eval_takeover.vllm.slots import Slots

CPU, VOCAB, LENGTH = torch.device("cpu"), 40, 24
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
REQUESTS = [
    RequestSettings(id="0", **SAMPLED),
    RequestSettings(id="1", lockstep=True),
    RequestSettings(id="2", traced=True, **SAMPLED),
]


@pytest.fixture(scope="module")
def logits():
    """By role, request and position: `[3, positions, vocab]`; they hang on nothing that was written, so any draft has them."""
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(3, LENGTH + 8, VOCAB, generator=generator) * 3
    return {"base": base, "guide": base + torch.randn(base.shape, generator=generator)}


def write_alone(policy, logits):
    """The tokens of each request by one token a pass, and their records."""
    slots, written = Slots(policy, capacity=3, device=CPU), [[], [], []]
    for row, one in enumerate(REQUESTS):
        track = slots.enter(row, one, (row,))
        for t in range(LENGTH):
            here = {role: logits[role][row : row + 1, t : t + 1] for role in policy.roles}
            written[row].append(slots.decide([track], torch.tensor([t]), here).tokens.item())
    return written, [np.frombuffer(slots.take(one.id, LENGTH)[0], np.float32) for one in REQUESTS]


def write_by_drafts(policy, logits):
    """The same by drafts of changing lengths, the first of each request without one."""
    slots = Slots(policy, capacity=3, device=CPU)
    kept = torch.zeros(4, 5, VOCAB) if policy.host else None
    verifier = Verifier(slots, VOCAB, kept)
    tracks = [slots.enter(row, one, (row,)) for row, one in enumerate(REQUESTS)]
    written, step, verified = [[], [], []], 0, 0
    while min(map(len, written)) < LENGTH:
        at = [min(len(text), LENGTH) for text in written]
        drafts = [(step + row) % 5 if step else 0 for row in range(3)]
        host = torch.zeros(3, 5, VOCAB)
        drawn = torch.zeros(3, 5, dtype=torch.int64)
        rows, fed = [], []
        for row, (t, many) in enumerate(zip(at, drafts, strict=True)):
            host[row] = logits["base"][row, t : t + 5]
            for j in range(many):
                with torch.random.fork_rng():
                    slot = torch.tensor([tracks[row].slot])
                    drawn[row, j] = slots.draw(slot, torch.tensor([t + j]), host[row, j : j + 1])
            rows.append(logits["guide"][row, t : t + many + 1])
            fed += [-1, *drawn[row, :many].tolist()]
        first = torch.tensor([0, *np.cumsum([many + 1 for many in drafts])[:-1]])
        target, read, positions = torch.cat(rows), torch.tensor(fed), torch.tensor(at)
        batch = Batch(tracks, positions, first, read, drafts, [True] * 3)
        if kept is not None:
            kept[[track.slot for track in tracks]] = host
        tokens, stands = verifier.verify(batch, target)
        for row, (own, many) in enumerate(zip(tokens.tolist(), stands.tolist(), strict=True)):
            written[row] += own[:many]
        verified, step = verified + sum(map(bool, drafts)), step + 1
    taken = [slots.take(one.id, LENGTH) for one in REQUESTS]
    records = [np.frombuffer(one, np.float32) for one, _ in taken]
    return [text[:LENGTH] for text in written], records, [passes for _, passes in taken]


@pytest.mark.parametrize("piece", [2**28, 2_000])
@pytest.mark.parametrize("name", ["disagreement", "random", "guide"])
def test_a_text_is_that_of_one_token_a_pass(monkeypatch, logits, name, piece):
    monkeypatch.setattr(module, "_PIECE", piece)
    want, known = write_alone(POLICIES[name], logits)
    made, records, passes = write_by_drafts(POLICIES[name], logits)
    assert made == want
    for own, other in zip(records, known, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-6)
    assert 0 < passes[0]["guide"] < LENGTH < passes[0]["guide"] + passes[0]["base"]
    assert passes[1]["guide"] > passes[0]["guide"]  # this one wants a token a pass


@pytest.mark.parametrize("name", ["disagreement", "guide"])
@pytest.mark.parametrize("piece", [2**28, 20_000])
def test_a_rehearsal_decides_as_many_rows_as_a_piece_has_and_leaves_nothing(monkeypatch, name, piece):
    monkeypatch.setattr(module, "_PIECE", piece)
    slots, seen = Slots(POLICIES[name], capacity=16, device=CPU), []
    decide = slots.decide
    slots.decide = lambda tracks, *given, **options: seen.append(len(tracks)) or decide(tracks, *given, **options)
    Verifier(slots, 100, None if name == "guide" else torch.zeros(0)).rehearse(3, torch.float32)
    width = 3 + (name == "guide")
    assert seen == [16 if piece == 2**28 else 20_000 // (2 * width * 100 * 4)]
    assert (len(slots._tracks), len(slots._free)) == (0, 16)

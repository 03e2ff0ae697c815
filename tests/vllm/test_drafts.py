"""What the engine with drafts asks of their verification beside its texts. vLLM is not needed."""

import pytest
import torch
from helpers.pairs import POLICIES

from lm_eval_takeover.vllm import drafts as module
from lm_eval_takeover.vllm.drafts import Batch, Verifier
from lm_eval_takeover.vllm.settings import RequestSettings
from lm_eval_takeover.vllm.slots import Slots

CPU, VOCAB = torch.device("cpu"), 40


def test_a_request_in_lockstep_takes_one_token_of_its_draft():
    """The engine compares such texts with those of whole drafts at its start."""
    slots, generator = Slots(POLICIES["guide"], capacity=2, device=CPU), torch.Generator().manual_seed(3)
    tracks = [slots.enter(RequestSettings(id=str(row), lockstep=bool(row)), (1,)) for row in range(2)]
    logits = torch.randn(1, 4, VOCAB, generator=generator).expand(2, 4, VOCAB).reshape(8, VOCAB)

    def verify(drafted):
        fed = torch.tensor([[-1, *drafted]] * 2).flatten()
        batch = Batch(tracks, torch.tensor([0, 0]), torch.tensor([0, 4]), fed, [3, 3], [True, True])
        return Verifier(slots, VOCAB, None).verify(batch, logits)

    tokens, _ = verify([0, 0, 0])
    assert verify(tokens[0, :3].tolist())[1].tolist() == [4, 1]


@pytest.mark.parametrize("name", ["disagreement", "guide"])
@pytest.mark.parametrize("piece", [2**28, 20_000])
def test_a_rehearsal_decides_as_many_rows_as_a_piece_has_and_leaves_nothing(monkeypatch, name, piece):
    monkeypatch.setattr(module, "PIECE", piece)
    slots, seen = Slots(POLICIES[name], capacity=16, device=CPU), []
    decide = slots.decide
    slots.decide = lambda tracks, *given, **options: seen.append(len(tracks)) or decide(tracks, *given, **options)
    Verifier(slots, 100, None if name == "guide" else torch.zeros(0)).rehearse(3, torch.zeros(1, 100))
    width = 3 + (name == "guide")
    assert seen[0] == (16 if piece == 2**28 else 20_000 // (2 * width * 100 * 4)) and set(seen[1:]) == {1}
    assert len({slots.enter(RequestSettings(id=str(row)), (1,)).slot for row in range(16)}) == 16

"""What drafts hold is in vLLM's measurement of its memory."""

from types import SimpleNamespace

import pytest
import torch
from helpers.pairs import POLICIES

from lm_eval_takeover.vllm.slots import Slots

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own


@pytest.mark.parametrize("name", ["disagreement", "guide"])
@pytest.mark.parametrize("piece", [2**28, 20_000])
def test_a_rehearsal_decides_as_many_rows_as_a_piece_has_and_leaves_nothing(monkeypatch, name, piece):
    from lm_eval_takeover.vllm import blockwise

    gate, seen = object.__new__(blockwise.BlockwiseGate), []
    gate.policy, gate.drafting, gate.verifying = POLICIES[name], "base", "guide"
    gate.slots = Slots(gate.policy, capacity=16, device=torch.device("cpu"))
    gate.settings, gate.runner = SimpleNamespace(vocab=100), SimpleNamespace(dtype=torch.float32)
    monkeypatch.setattr(blockwise, "_PIECE", piece)
    decide = gate.slots.decide
    gate.slots.decide = lambda tracks, *given, **options: seen.append(len(tracks)) or decide(tracks, *given, **options)
    gate.rehearse(block=3)
    assert seen == [16 if piece == 2**28 else 20_000 // (2 * 4 * 100 * 4)]
    assert (gate.slots.calls, len(gate.slots._tracks), len(gate.slots._free)) == (0, 0, 16)

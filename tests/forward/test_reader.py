"""A reader reads into slots; lengths say what counts, rows move and are copied with them."""

import pytest
import torch

from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.reader import Reader

VOCAB = 512


@pytest.fixture(params=[False, True], ids=["eager", "graphed"])
def forward(demo_pair, monkeypatch, request):
    """With static tensors, as a GPU replays them, the same code runs eagerly here."""
    forward = prepare_pass(demo_pair.base)
    monkeypatch.setattr(forward, "graphed", request.param)
    return forward


def prefilled(forward, prompts, slots):
    reader = Reader(forward, slots, VOCAB)
    read = reader.prefill(prompts)
    for row in range(len(prompts)):
        reader.copy_row(read, row, row)
    return reader


def expected(forward, text):
    ids = torch.tensor([text])
    return forward.member.compute_logits(ids, torch.ones_like(ids))[0, -1, :VOCAB]


@torch.inference_mode()
def test_a_smaller_length_is_a_roll_back(forward, prompts):
    reader = prefilled(forward, prompts, 4)
    reader.read(range(4), torch.full((4, 5), 7))
    reader.lengths = [length + 1 for length in reader.lengths]  # one token of five is kept
    logits = reader.read(range(4), torch.full((4, 1), 9))[:, 0]
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(logits[row], expected(forward, [*prompt, 7, 9]), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_moved_row_goes_on_in_its_new_slot(forward, prompts):
    reader = prefilled(forward, prompts, 4)
    reader.move_row(3, 1)
    logits = reader.read([1], torch.tensor([[9]]))[0, 0]
    torch.testing.assert_close(logits, expected(forward, [*prompts[3], 9]), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_rows_of_other_numbers_of_tokens_are_read_to_the_last_of_each(forward, prompts):
    reader = prefilled(forward, prompts, 4)
    ids, counts = torch.tensor([[3, 4, 5], [6, 0, 0]]), [3, 1]
    logits = reader.read_to_last([2, 0], ids, counts)
    for row, (slot, tokens) in enumerate([(2, [3, 4, 5]), (0, [6])]):
        torch.testing.assert_close(logits[row], expected(forward, [*prompts[slot], *tokens]), rtol=1e-4, atol=1e-4)

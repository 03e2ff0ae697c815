"""What drafts do of their own in a step of vLLM's model runner V2: on a simulated GPU, without a wait."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.pairs import POLICIES
from helpers.simulated_gpu import CUDA, simulated_gpu

from lm_eval_takeover.vllm.settings import RequestSettings
from lm_eval_takeover.vllm.slots import Slots

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own
CPU, VOCAB, BLOCK = torch.device("cpu"), 40, 3
PROMPT = 5  # tokens
READ = [
    4,
    5,
    4,
    3,
]  # of these, the second has only placeholders behind its prompt, and the last reads a part of its prompt
DRAFTS = [3, 3, 3, 0]


def describe(place):
    """A batch as vLLM describes it; requests are at the indices 2, 0, 3 and 1 of its state."""
    many = np.array(DRAFTS, np.int32)
    ends, logits = np.cumsum(READ), np.cumsum(many + 1)
    indices = torch.cat([torch.arange(end - count - 1, end) for end, count in zip(ends, many, strict=True)])
    found = SimpleNamespace(
        num_reqs=4,
        idx_mapping=torch.tensor([2, 0, 3, 1]),
        idx_mapping_np=np.array([2, 0, 3, 1]),
        num_draft_tokens_per_req=many,
        num_computed_tokens_np=np.array([8, 3, 6, 0]),
        num_scheduled_tokens=np.array(READ),
        prefill_len_np=np.full(4, PROMPT),
        is_prefilling_np=np.array([False, True, False, True]),
        cu_num_logits=torch.tensor([0, *logits]),
        logits_indices=indices,
        positions=torch.cat([torch.arange(start, start + count) for start, count in zip([8, 3, 6, 0], READ, strict=True)]),
        input_ids=torch.arange(sum(READ), dtype=torch.int32) % VOCAB,
        seq_lens=torch.tensor([12, 8, 10, 3]),
    )  # fmt: skip
    place(*(one for one in vars(found).values() if isinstance(one, torch.Tensor)))
    return found


def step(policy, device, place, monkeypatch, gpu=None):
    """One step: what is emitted, how much of it, and the next drafts."""
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    from lm_eval_takeover.vllm import drafts_v2 as module

    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, VOCAB + 8, generator=generator)  # noqa: E731 (padded vocabulary)
    target, kept, bare, fresh = draw(sum(DRAFTS) + 4), draw(4, BLOCK), draw(4), draw(4)
    prompts = torch.full((4,), PROMPT)
    place(target, kept, bare, fresh, prompts)
    state = object.__new__(module.DraftingModelState)
    state.settings, state.slots = SimpleNamespace(vocab=VOCAB, block=BLOCK), Slots(policy, capacity=4, device=device)
    state._prompt_lengths = prompts
    state._tracks = {
        index: state.slots.enter(index, RequestSettings(id=str(index), temperature=0.8 * (index % 2)), (index,))
        for index in range(4)
    }
    drafter = state.speculator = object.__new__(module.TakeoverSpeculator)
    vars(drafter).update(model=SimpleNamespace(compute_logits=lambda hidden: hidden), model_state=state)
    drafter.draft_logits = kept if policy.host else None
    monkeypatch.setattr(module.TakeoverSpeculator, "read_next", lambda self, batch, last, behind: bare[:, :VOCAB])
    sampler, _ = state.custom_sampler(object.__new__(Sampler))
    batch = describe(place)
    if gpu is not None:
        gpu.counts, gpu.waits = True, 0
    out = sampler(target, batch, None, None)
    drafter._tracks = state.find_tracks(batch.idx_mapping_np)
    places = batch.positions[batch.logits_indices[batch.cu_num_logits[:-1]]]
    drafted = drafter.sample_draft(fresh, places, batch.idx_mapping, None, None, None, drafter.draft_logits)
    if gpu is not None:
        gpu.counts = False
    tokens = [text[:many] for text, many in zip(out.sampled_token_ids.tolist(), out.num_sampled.tolist(), strict=True)]
    passes = [state.slots.take(str(index), 20)[1]["guide"] for index in range(4)]
    return tokens, drafted.tolist(), passes


@pytest.mark.parametrize("name", ["disagreement", "guide"])
def test_a_step_waits_for_nothing_and_placeholders_are_no_drafts(monkeypatch, name):
    want = step(POLICIES[name], CPU, lambda *values: None, monkeypatch)
    with simulated_gpu(SimpleNamespace(members=[]), monkeypatch) as gpu:
        made = step(POLICIES[name], CUDA, gpu.place, monkeypatch, gpu)
    assert not gpu.faults, sorted(set(gpu.faults))
    assert gpu.waits == 0
    assert made == want
    tokens, _, passes = made
    assert len(tokens[1]) == 1 and passes == [0, 0, 1, 1]  # by index: of those at 2 and 3 a draft was verified

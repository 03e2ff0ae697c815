"""A model's pass: what preparing it tells and leaves as it was, its cache, and that a replay gives what an eager pass gives."""

import pytest
import torch
from helpers.pairs import save_random_model
from helpers.simulated_gpu import simulate_captures
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.forward_pass import ForwardPass, prepare_pass
from lm_eval_takeover.forward.reader import Reader
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw_rows, drawing
from lm_eval_takeover.pair.member import Member


@pytest.mark.parametrize(("role", "argument"), [("base", "dtype"), ("guide", "guide_dtype")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("computes", [False, True], ids=["emulated", "native"])
def test_bfloat16_that_is_emulated_is_told_with_the_argument(random_pair, machine, caplog, role, argument, dtype, computes):
    machine(bfloat16=computes)
    ForwardPass(Member(role, str(random_pair[role]), dtype=dtype))
    told = f"is loaded in bfloat16, in which this CPU cannot compute: {argument}=float32" in caplog.text
    assert told == (dtype == torch.bfloat16 and not computes)


def test_the_model_stays_what_it_was_for_others(random_pair):
    member = Member("base", str(random_pair["base"]))
    ids = torch.arange(12)[None]
    before = member.model(ids).logits
    with torch.inference_mode():
        ForwardPass(member)
    after = member.model(ids, use_cache=False).logits
    torch.testing.assert_close(before, after)
    after.sum().backward()  # the weights are ordinary ones


def test_layers_that_keep_a_state_are_refused_by_name(tmp_path):
    base = save_random_model(tmp_path / "mamba", vocab_size=544, seed=5, kind="mamba", state_size=4)
    member = Member("base", str(base))
    with pytest.raises(ArgumentError, match=r"base='mamba': .* keep a state that cannot be rolled back; use block_s"):
        ForwardPass(member)


STEP = st.tuples(
    st.sampled_from(["draft", "read", "last"]),
    st.sets(st.integers(0, 5), min_size=1),
    st.integers(1, 5),
    st.sampled_from([Sampling(), Sampling(1.0), Sampling(0.6, 0.95), Sampling(0.8, 0.9, 5)]),
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, min_size=4, max_size=8), seed=st.integers(0, 99))
@torch.inference_mode()
def test_a_replay_gives_what_an_eager_pass_gives(small_pair, monkeypatch, steps, seed):
    """Six rows of lengths on both sides of 256 columns; after each step some of what was read counts."""
    generator, forward, vocab = torch.Generator().manual_seed(seed), prepare_pass(small_pair.guide), 512
    with monkeypatch.context() as patch:
        simulate_captures(patch)
        patch.setattr("lm_eval_takeover.forward.forward_pass.draw_rows", _draw)
        patch.setattr(forward, "graphed", True)
        replayed, eager = Reader(forward, 6, vocab), Reader(forward, 6, vocab, graphed=False)
        lengths = [int(n) for n in torch.randint(1, 60, (6,), generator=generator)]
        lengths[seed % 6] = 250 + seed % 9
        texts = [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in lengths]
        prefilled = eager.prefill(texts)
        for reader in (replayed, eager):
            for slot in range(6):
                reader.copy_row(prefilled, slot, slot)
        for _ in range(3):
            for kind, slots, new, sampling in steps:
                slots = sorted(slots)
                ids = torch.randint(0, vocab, (len(slots), 1 if kind == "draft" else new), generator=generator)
                words = torch.randint(-(2**63), 2**63 - 1, (len(slots),), generator=generator)
                counts = torch.randint(1, new + 1, (len(slots),), generator=generator).tolist()
                made = [_step(reader, kind, slots, ids, counts, words, sampling) for reader in (replayed, eager)]
                torch.testing.assert_close(*made, rtol=1e-3, atol=1e-3)
                for reader in (replayed, eager):
                    for slot, count in zip(slots, counts, strict=True):
                        reader.lengths[slot] += 1 if kind == "draft" else count


def _step(reader, kind, slots, ids, counts, words, sampling):
    if kind == "draft":
        with drawing():
            drafted = reader.draft(slots, ids, 0, words, sampling)
        return [drafted.logits.clone(), drafted.tokens.clone()]
    if kind == "read":
        return [reader.read(slots, ids).clone()]
    return [reader.read_to_last(slots, ids, counts).clone()]


@torch.library.custom_op("takeover_tests::draw", mutates_args=())
def _draw_once(logits: torch.Tensor, words: torch.Tensor, temperature: float, top_p: float, top_k: int) -> list[torch.Tensor]:
    return list(draw_rows(logits, words, Sampling(temperature, top_p, top_k)))


def _draw(logits, words, sampling):
    """As one operation, which a recording knows."""
    return _draw_once(logits, words, sampling.temperature, sampling.top_p, sampling.top_k)

"""Passes of one model, and their check against plain ones."""

from unittest.mock import Mock

import pytest
import torch
from architectures import save_model
from helpers.one_line import one_line
from helpers.pairs import GREEDY, POLICIES, SAMPLED, texts
from helpers.simulated_gpu import CUDA, simulated_gpu
from torch.nn import Linear
from torch.nn.functional import linear

from lm_eval_takeover.decoding import engine, lockstep
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward import caches, forward_pass
from lm_eval_takeover.forward.forward_pass import ForwardPass, GraphedPass, prepare_pass
from lm_eval_takeover.forward.lean_decoder import LeanDecoder, Projection
from lm_eval_takeover.forward.self_check import Reading, check_member, choose_reading, verify_pass
from lm_eval_takeover.kernels import operations
from lm_eval_takeover.method.policies import BaseAlone
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.vllm.slots import Slots


@pytest.fixture
def member(tmp_path):
    """A model of its own for each test, by architecture."""
    return lambda kind, **options: Member("base", str(save_model(tmp_path / kind, kind)), **options)


def notices(caplog):
    """Of the package, but for what the CPU cannot do; transformers says which kernels it misses."""
    records = (record for record in caplog.records if record.name.startswith("lm_eval_takeover"))
    return [record for record in records if "this CPU cannot compute" not in record.message]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "falcon_h1"])
def test_what_is_sound_passes(member, caplog, kind, dtype):
    assert choose_reading(member(kind, dtype=dtype)) == Reading()
    if kind == "llama":
        verify_pass(member(kind, dtype=dtype))
    assert not notices(caplog)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_that_samples_share_are_found(member, monkeypatch, caplog, dtype):
    """As they were shared once: convolution and recurrent states in one dictionary, written in place."""

    def select_attention_only(cache, rows):
        selected = caches.copy.copy(cache)
        selected.layers = [caches.copy.copy(layer) for layer in cache.layers]
        selected.batch_select_indices(rows)
        return selected

    monkeypatch.setattr(caches, "select_rows", select_attention_only)
    assert choose_reading(member("falcon_h1", dtype=dtype)) == Reading(padded=False, cached=False, chunked=False)
    assert "so its cache is not used and each token reads its whole text again" in caplog.text


def test_padding_that_is_read_is_found(member, caplog):
    unmasked = member("llama")
    no_mask = {"attention_mask": None}
    unmasked.model.register_forward_pre_hook(lambda _, given, named: (given, named | no_mask), with_kwargs=True)
    assert choose_reading(unmasked) == Reading(padded=False)
    assert "so prompts of different lengths are read apart" in caplog.text


def test_a_roll_back_that_leaves_a_trace_is_found_and_lockstep_goes_on(member, monkeypatch, caplog):
    """Masks that hide nothing: queries see what was rolled back, and other rows' longer texts."""
    plain = ForwardPass.build_masks

    def hide_nothing(self, plan, *, always=False):
        return [None if mask is None else torch.zeros_like(mask) for mask in plain(self, plan, always=always)]

    monkeypatch.setattr(ForwardPass, "build_masks", hide_nothing)
    pair = Pair(member("gpt_neox"), None)
    requests = [Request((65, 66, 67 + length)[:length], 0, 6, GREEDY) for length in (2, 3)]
    made = dict(engine.generate(pair, BaseAlone(), requests, batch_size=2))
    assert "its first logits differ from plain passes" in caplog.text
    expected = dict(lockstep.generate(pair, BaseAlone(), requests, batch_size=2))
    assert [made[i].tokens for i in range(2)] == [expected[i].tokens for i in range(2)]
    with pytest.raises(ArgumentError, match=r"differ from plain passes .* use block_size=1"):
        list(engine.generate(pair, BaseAlone(), requests, block_size=4))


def test_a_lean_pass_that_is_wrong_gives_way_to_transformers_own(member, monkeypatch, caplog):
    plain = LeanDecoder.compute_logits
    monkeypatch.setattr(LeanDecoder, "compute_logits", lambda self, *given: plain(self, *given).roll(1, -1))
    llama = member("llama")
    assert prepare_pass(llama).lean is not None
    assert verify_pass(llama).lean is None
    assert "in the lean pass its first logits differ" in caplog.text


def test_what_is_no_causal_language_model_is_refused_in_a_line(member):
    with one_line(ArgumentError, "cannot be served: its logits depend on later tokens"):
        check_member(member("bert"))


def test_a_model_whose_pass_fails_is_refused_at_the_start_and_not_by_request(member):
    broken = member("llama")
    broken.model.register_forward_pre_hook(Mock(side_effect=RuntimeError("no kernel\nfor this")))
    told = r"cannot be served: a pass over a short text fails with RuntimeError: no kernel$"
    with pytest.raises(ArgumentError, match=told):
        list(engine.generate(Pair(broken, None), BaseAlone(), [Request((65,), 0, 2, GREEDY)] * 3))


def forget_lengths(monkeypatch):
    """As if a captured pass read the lengths of the time of its capture."""
    fill = GraphedPass._fill

    def stale(self, lengths, *rest):
        self.first = getattr(self, "first", list(lengths))
        return fill(self, self.first, *rest)

    monkeypatch.setattr(GraphedPass, "_fill", stale)


def cut_columns(monkeypatch):
    """A pass over few columns, whatever its rows have read."""
    monkeypatch.setattr(forward_pass, "_round_up_to_power", lambda columns: 256)


@pytest.mark.parametrize("broken", [None, forget_lengths, cut_columns], ids=["sound", "lengths", "columns"])
def test_graphs_that_give_other_logits_are_not_used(own_pair, prompts, monkeypatch, caplog, broken):
    requests = [Request(text, 0, 12, SAMPLED) for text in ((prompts[0] * 9)[:300], *prompts[1:3])]
    expected = texts(lockstep.generate(own_pair, POLICIES["disagreement"], requests, batch_size=3))
    with simulated_gpu(own_pair, monkeypatch):
        if broken is not None:
            broken(monkeypatch)
        made = texts(engine.generate(own_pair, POLICIES["disagreement"], requests, batch_size=3))
        graphed = [prepare_pass(member).graphed for member in own_pair.members]
    assert made == expected
    assert graphed == [broken is None] * 2
    assert ("in CUDA graphs its first logits differ" in caplog.text) == (broken is not None)
    assert "are not used" not in caplog.text or broken is not None


def test_a_layer_is_nine_operations(own_pair, prompts, monkeypatch):
    """Ten launches, since attention is two kernels; ten operations more in a draft: embedding, mask, last norm, head, draw."""
    requests = [Request(text, 0, 12, SAMPLED) for text in prompts[:3]]
    with simulated_gpu(own_pair, monkeypatch):
        list(engine.generate(own_pair, POLICIES["disagreement"], requests, batch_size=3))
        captured = prepare_pass(own_pair.base).left_reader._graphed.graphs._captured
    layers = own_pair.base.model.config.num_hidden_layers
    assert {len(graph.steps) for graph, _ in captured.values()} == {9 * layers + 10}


def move(made):
    """Each row gets a little of another one's."""
    if isinstance(made, tuple):
        return made[0].roll(1), made[1]
    if not made.is_floating_point():
        return made + 1
    return made * torch.linspace(1, 1.1, len(made)).view(-1, *[1] * (made.dim() - 1))


REFUSED = Mock(side_effect=RuntimeError("no kernel image is available for execution on the device"))


@pytest.mark.parametrize(("name", "alter"), [("read_pair", move), ("compute_words", move), ("draw", REFUSED)])
def test_kernels_that_compute_something_else_are_not_used(own_pair, prompts, monkeypatch, caplog, name, alter):
    requests = [Request(text, 0, 12, SAMPLED) for text in prompts[:3]]
    expected = dict(lockstep.generate(own_pair, POLICIES["js"], requests, batch_size=3, traced=True))
    with simulated_gpu(own_pair, monkeypatch) as gpu:
        sound = getattr(gpu.kernels, name)
        setattr(gpu.kernels, name, lambda *given: alter(sound(*given)))
        made = dict(engine.generate(own_pair, POLICIES["js"], requests, batch_size=3, traced=True))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        assert not operations.run_on(torch.device("cuda"))
        with pytest.raises(ArgumentError, match="cuda:0: backend=vllm needs the kernels for scores and draws; use backend=hf"):
            Slots.open(None, None, CUDA)
    assert texts(made) == texts(expected)
    for i, one in made.items():
        assert list(one.observed) == pytest.approx(list(expected[i].observed), rel=1e-2, abs=1e-3, nan_ok=True)
    told = [line for line in caplog.messages if "the kernels for scores and draws are not used" in line]
    assert len(told) == 1 and told[0].startswith("cuda:0: ")


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


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16 emulated", "bfloat16 native"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(96, [64, 32, 32]), (512, [768, 512])])
def test_every_layout_equals_linear(machine, inputs, outputs, pack, bias, dtype):
    """bfloat16 is rounded where `linear` rounds it. Sums are float32 in every layout, whether the CPU multiplies in bfloat16 or
    copies of the weights do in float32."""
    kind = getattr(torch, dtype.partition(" ")[0])
    machine(bfloat16=dtype.endswith("native"))
    with torch.inference_mode(False), torch.no_grad():
        torch.manual_seed(0)
        parts = [Linear(inputs, one, bias=bias, dtype=kind) for one in outputs]
        weight = torch.cat([part.weight for part in parts]).double()
        added = torch.cat([part.bias for part in parts]).double() if bias else None
        projection = Projection(parts, pack=pack)
    if kind == torch.float32:  # no weight is held twice
        storage = projection.weight.untyped_storage().data_ptr()
        assert {part.weight.untyped_storage().data_ptr() for part in parts} == {storage}
    # In bfloat16 a rounding or two: those of the sum, and of the bias that is added to it.
    close = {"rtol": 1e-4, "atol": 1e-4} if kind == torch.float32 else {"rtol": 2.0**-8, "atol": 2.0**-7}
    for tokens in (1, 2, 8, 9, 12, 256, 257):
        x = torch.randn(tokens, inputs, dtype=kind)
        wanted, found = linear(x.double(), weight, added), projection(x)
        assert found.is_contiguous() and found.dtype == kind
        torch.testing.assert_close(found.double(), wanted, **close)
        if kind == torch.float32:
            sum_ = torch.randn(tokens, sum(outputs))
            torch.testing.assert_close(projection.add_to(sum_, x).double(), sum_ + wanted, **close)
            torch.testing.assert_close(torch.cat([part(x) for part in parts], -1).double(), wanted, **close)
        else:
            assert torch.equal(projection.add_to(x.new_zeros(found.shape), x), found)

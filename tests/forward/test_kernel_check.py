"""The checks of a GPU at its first use, on a simulated one: what is wrong there is not used, a line says so, and texts stay."""

import pytest
import torch
from helpers.pairs import POLICIES, SAMPLED, texts
from helpers.simulated_gpu import CUDA, simulated_gpu

from lm_eval_takeover.decoding import engine, lockstep
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward import forward_pass
from lm_eval_takeover.forward.forward_pass import GraphedPass, prepare_pass
from lm_eval_takeover.forward.kernel_check import check_kernels
from lm_eval_takeover.kernels import operations
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.vllm.slots import Slots


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


def move(made):
    """Each row gets a little of another one's."""
    if isinstance(made, tuple):
        return made[0].roll(1), made[1]
    if not made.is_floating_point():
        return made + 1
    return made * torch.linspace(1, 1.1, len(made)).view(-1, *[1] * (made.dim() - 1))


def fail(made):
    raise RuntimeError("no kernel image is available for execution on the device")


KERNELS = ("draw", "read_pair", "jensen_shannon", "compute_words")


@pytest.mark.parametrize(("name", "alter"), [*((name, move) for name in KERNELS), ("draw", fail)])
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


def test_the_check_has_rows_that_a_gpu_loads_as_vectors_as_those_of_most_models(own_pair, monkeypatch):
    with simulated_gpu(own_pair, monkeypatch) as gpu:
        seen, draw = [], gpu.kernels.draw
        gpu.kernels.draw = lambda logits, *rest: seen.append((logits.shape[-1], *logits.stride()[:-1])) or draw(logits, *rest)
        check_kernels(CUDA)
    seen = [one for one in seen if one[0] == 5008]  # the first part; the other has the vocabulary of a real model
    assert len(set(seen)) == 1 and all(size % 16 == 0 for size in seen[0]) and seen[0][1] > seen[0][0]

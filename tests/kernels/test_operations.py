"""Operations of the kernels read tensors that lie in memory in any way: strided, padded, sliced, permuted."""

import pytest
import torch
from helpers.interpreter import interpret_operations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lm_eval_takeover.kernels import operations
from lm_eval_takeover.kernels.operations import Rules

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def padded(tensor):
    """In a larger one, before and behind it in every dimension."""
    larger = tensor.new_full([size + 3 for size in tensor.shape], 1)
    view = larger[tuple(slice(1, size + 1) for size in tensor.shape)]
    return view.copy_(tensor)


def strided(tensor):
    """Every second element of a larger one."""
    larger = tensor.new_full([2 * size for size in tensor.shape], 1)
    view = larger[tuple(slice(None, None, 2) for _ in tensor.shape)]
    return view.copy_(tensor)


def permuted(tensor):
    """With its dimensions behind each other in the opposite order."""
    turned = tensor.permute(*reversed(range(tensor.dim()))).contiguous()
    return turned.permute(*reversed(range(tensor.dim())))


PLACES = st.sampled_from([torch.Tensor.contiguous, padded, strided, permuted])


def leaves(value):
    return [value] if isinstance(value, torch.Tensor) else [leaf for part in value for leaf in leaves(part)]


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 5), width=st.integers(1, 3), vocab=st.sampled_from([3, 64, 97]), seed=st.integers(0, 99), how=st.data()
)  # fmt: skip
def test_where_tensors_lie_changes_nothing(monkeypatch, rows, width, vocab, seed, how):
    generator = torch.Generator().manual_seed(seed)
    host, donor = (3 * torch.randn(rows, width, vocab, generator=generator) for _ in range(2))
    tokens = torch.randint(0, vocab, (rows, width), generator=generator)
    count = rows * width
    words, keys = (torch.randint(-(2**63), 2**63 - 1, shape, generator=generator) for shape in ((count,), (rows, 1, 2)))
    asked = torch.randint(-1, count, (count,), generator=generator)
    rules = Rules.of([(0.7, 0.9, 5), (1.0, 1.0, 0), (0.0, 1.0, 0)][:1] * count, torch.device("cpu"))

    def compute(place):
        table = place(rules.table)
        return [
            operations.read_pair(place(host), place(donor), place(tokens)),
            operations.jensen_shannon(place(host), place(donor)),
            operations.draw(place(host), place(words), rules._replace(table=table), place(asked)),
            operations.compute_words(place(keys), place(tokens)),
        ]

    with monkeypatch.context() as patch:
        library = interpret_operations(patch)
        expected, found = compute(torch.Tensor.contiguous), compute(lambda tensor: how.draw(PLACES)(tensor))
        del library
    for one, other in zip(leaves(expected), leaves(found), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)

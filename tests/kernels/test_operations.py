"""What scores and traces ask, in Triton's interpreter, beside the same in torch, of tensors that lie in memory in any way."""

import math

import pytest
import torch
from helpers.interpreter import interpret_operations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lm_eval_takeover.kernels import operations
from lm_eval_takeover.kernels.operations import Rules
from lm_eval_takeover.method.reading import PairReading, compare, observe
from lm_eval_takeover.method.registry import scores

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of logits that are no distribution
NAMES = [score.name for score in scores if score.source.digest is None]


def rough_pair(vocab, scale, dtype):
    """Rows `[2, 12, vocab]` of two models that nearly agree, are equal, rule tokens out, are certain, or are no distribution."""
    generator = torch.Generator().manual_seed(vocab)
    host = torch.randn(24, vocab, generator=generator) * scale
    donor = host + torch.randn(24, vocab, generator=generator) * scale * 0.3
    donor[0] = host[0]
    host[1, :20] = donor[2, :20] = -math.inf
    host[9, :20] = donor[9, :20] = -math.inf
    host[8], host[8, 5] = -50, 50
    donor[8] = host[8]
    donor[3], host[4] = -math.inf, -math.inf
    host[5, 7], host[6, 3], donor[7, 9], donor[10, 5] = math.inf, math.nan, math.nan, math.inf
    return host.view(2, 12, vocab).to(dtype), donor.view(2, 12, vocab).to(dtype)


PAIRS = [(97, 3.0, torch.float32), (150, 12.0, torch.float32), (97, 0.1, torch.bfloat16), (64, 0.0, torch.float32)]


@pytest.mark.parametrize(("vocab", "scale", "dtype"), PAIRS, ids=str)
def test_they_are_those_of_torch(monkeypatch, vocab, scale, dtype):
    host, donor = rough_pair(vocab, scale, dtype)
    tokens = torch.randint(0, vocab, (2, 12), generator=torch.Generator().manual_seed(1))

    def read_all(host, donor):
        found = {name: scores.get(name)(host, donor, tokens) for name in NAMES}
        sound = [row for row in range(12) if row not in (3, 4, 5, 6, 7, 10)]  # ranks of NaN are anything
        host, donor, those = host[:, sound], donor[:, sound], tokens[:, sound]
        found["observed"] = observe(those, host, donor, base_logits=donor, host_tokens=those)
        found["compared"] = compare(PairReading(host, donor, those))
        return found

    expected = read_all(host.float(), donor.float())
    library = interpret_operations(monkeypatch)
    found = read_all(host, donor)
    del library
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, atol=2e-5, rtol=1e-5, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")


def test_small_scores_are_not_rounded_against_1(monkeypatch):
    """Thresholds near 0 split scores, not roundings: of a nearly certain token all digits count."""
    host = torch.tensor([[0.0, -30.0, -31.0], [0.0, -60.0, -61.0]])
    library = interpret_operations(monkeypatch)
    found = scores.get("confidence")(host)
    del library
    torch.testing.assert_close(found, host[:, 1:].exp().sum(-1), rtol=1e-5, atol=0)


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
    rows=st.integers(1, 3), width=st.integers(1, 2), vocab=st.sampled_from([3, 64, 97]), seed=st.integers(0, 99), how=st.data()
)  # fmt: skip
def test_where_tensors_lie_changes_nothing(monkeypatch, rows, width, vocab, seed, how):
    generator = torch.Generator().manual_seed(seed)
    host, donor = (3 * torch.randn(rows, width, vocab, generator=generator) for _ in range(2))
    tokens = torch.randint(0, vocab, (rows, width), generator=generator)
    count = rows * width
    words, keys = (torch.randint(-(2**63), 2**63 - 1, shape, generator=generator) for shape in ((count,), (rows, 1, 2)))
    asked = torch.randint(-1, count, (count,), generator=generator)
    rules = Rules.of([(0.7, 0.9, 5, 0.1)] * count, torch.device("cpu"))

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

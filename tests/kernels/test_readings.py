"""What scores and traces ask, in Triton's interpreter, beside the same in torch."""

import math

import pytest
import torch
from helpers.interpreter import interpret_operations

from lm_eval_takeover.method.observations import compare, observe
from lm_eval_takeover.method.reading import PairReading
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


PAIRS = [(97, 3.0, torch.float32), (300, 12.0, torch.float32), (97, 0.1, torch.bfloat16), (64, 0.0, torch.float32)]


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

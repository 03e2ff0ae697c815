"""In Triton's interpreter or on a GPU: attention beside SDPA, draws beside those of the CPU, scores and traces beside torch."""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from helpers import simulated_gpu as plain
from helpers.interpreter import interpret_operations
from helpers.pairs import SAMPLINGS
from kernel_draws import make_logits, place_rules
from torch.nn.functional import scaled_dot_product_attention
from triton.runtime import interpreter

from lm_eval_takeover.forward.caches import LONGEST
from lm_eval_takeover.kernels import attention, draws, layers, readings
from lm_eval_takeover.method.reading import PairReading, compare, observe
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.method.request import Sampling

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of weights that are 0 or NaN
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are seen in the interpreter")
def test_what_is_fused_does_not_depend_on_triton_s_default(monkeypatch):
    run, fused = interpreter.GridExecutor.__call__, dict[str, object]()

    def see(self, *arguments, **options):
        fused[self.fn.__name__] = options.get("enable_fp_fusion")
        return run(self, *arguments, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", see)
    logits, words_, part = torch.randn(1, 2, 97), torch.tensor([1, 2]), torch.randn(1, 2, 2, 16)
    readings.read_pair(logits, logits, None, tile=64)
    readings.jensen_shannon(logits, logits, tile=64)
    draws.draw(logits, words_, place_rules(Sampling(1.0, 0.9, 5)).table, True, True, None, tile=64)
    attention.attend(part, part.transpose(1, 2), part.transpose(1, 2), torch.zeros(1, 1, 2, 2), 1.0)
    layers.normalise(part[0, 0], part[0, 0, 0], 1e-6)
    layers.rotate(part, None, part[0], part[0], words_[:1], words_[None], part[:, :, :0], part[:, :, :0], 0.0)
    layers.activate(part[0, 0])
    assert len(fused) == 12 and set(fused.values()) == {False}, fused


SHAPES = [(1, 1, 256, 64), (2, 12, 700, 64), (3, 5, 90, 16), (1, 40, 513, 32), (5, 3, 64, 16)]  # rows, new, columns, dim


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("window", "dtype"), [(None, torch.float32), (30, torch.float32), (30, torch.bfloat16)], ids=str)
def test_it_is_that_of_sdpa(shape, window, dtype):
    """Rows of their own lengths; the keys of a row are a part of a wider buffer, and the queries of a fused projection."""
    rows, new, columns, dim = shape
    kv_heads, group = 2, 3
    generator = torch.Generator().manual_seed(columns)
    fused = torch.randn(rows, new, (group + 2) * kv_heads, dim, generator=generator, dtype=torch.float32).to(dtype)
    queries = fused[:, :, : group * kv_heads]
    buffers = torch.randn(2, rows + 1, columns + 7, kv_heads, dim, generator=generator).to(dtype)
    keys, values = (buffer[:rows, :columns].transpose(1, 2) for buffer in buffers)
    lengths = torch.randint(0, columns - new + 1, (rows, 1), generator=generator)
    positions, at = (lengths + torch.arange(new))[..., None], torch.arange(columns)
    hidden = at > positions
    if window is not None:
        hidden |= at <= positions - window
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)[:, None]
    repeated = (part.double().repeat_interleave(group, 1) for part in (keys, values))
    expected = scaled_dot_product_attention(queries.double().transpose(1, 2), *repeated, attn_mask=mask.double(), scale=0.3)
    made = attention.attend(queries, keys, values, mask, 0.3)
    assert made.dtype == dtype and made.shape == queries.shape
    close = {"atol": 1e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(made.double(), expected.transpose(1, 2), **close)


@triton.jit
def _cast(x, made, T: tl.constexpr):
    lanes = tl.program_id(0) * T + tl.arange(0, T)
    tl.store(made + lanes, tl.load(x + lanes).to(tl.bfloat16))


def test_a_kernel_rounds_to_bfloat16_as_torch_does():
    """Each bfloat16, infinities and subnormals too, and behind it a tie, the tie's neighbours and values at random."""
    low = torch.randint(0, 2**16, (2**16, 8), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    low[:, :4] = torch.tensor([0, 2**15 - 1, 2**15, 2**15 + 1])
    x = (torch.arange(-(2**15), 2**15, dtype=torch.int32)[:, None] * 2**16 + low).flatten().view(torch.float32)
    x = x.cuda() if torch.cuda.is_available() else x
    made, nan = torch.empty_like(x, dtype=torch.bfloat16), x.isnan()
    _cast[len(x) // 4096,](x, made, T=4096)
    assert made[nan].isnan().all() and torch.equal(made[~nan].view(torch.int16), x[~nan].bfloat16().view(torch.int16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "new", "dim", "normed"), [(1, 1, 64, True), (3, 5, 16, True), (2, 12, 128, False)])
def test_a_layer_is_that_of_transformers(rows, new, dim, normed, dtype):
    """Rows in slots of their own, at columns of their own; halves are rounded where transformers rounds them."""
    heads, kv_heads, generator = 4, 2, torch.Generator().manual_seed(dim)
    make = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    slots = torch.randperm(rows + 2, generator=generator)[:rows]
    positions = (torch.randint(0, 40, (rows, 1), generator=generator) + torch.arange(LONGEST))[:, :new]
    weight, rotations = make(heads + kv_heads, dim) if normed else None, (make(60, 1, dim), make(60, 1, dim))
    qkv, buffers = make(rows, new, heads + 2 * kv_heads, dim), make(2, rows + 2, kv_heads, 60, dim).transpose(2, 3)
    x, size_weight, gate_up = make(rows * new, 3 * dim), make(3 * dim), make(rows * new, 2 * 1030)
    found, expected = [], []
    for module, made in ((layers, found), (plain, expected)):
        written = buffers.clone()
        made.append(module.rotate(qkv, weight, *rotations, slots, positions, *written, 1e-6))
        made += [written, module.normalise(x, size_weight, 1e-5), module.activate(gate_up)]
    near = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=near, rtol=near)
        assert dtype == torch.float32 or (ours == theirs).float().mean() > 0.995  # sums are added up in another order


def at_random(count):
    return torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, count))


def test_the_words_of_a_device_are_those_of_numpys_philox():
    positions = torch.tensor([0, 1, 2, 3, 4, 7, 1000, 40_001]).repeat(3)
    keys = at_random(2 * len(positions)).view(-1, 2)
    assert torch.equal(draws.compute_words(keys, positions), plain.compute_words(keys, positions))


# Settings, dtype, rows, vocabulary, and how a launch is cut up.
DRAWS = [(how, torch.float32, 320, 97, {}) for how in SAMPLINGS] + [(how, torch.bfloat16, 320, 97, {}) for how in SAMPLINGS[:5]]
DRAWS += [(Sampling(0.9, 0.8, k), torch.float32, 16, vocab, {}) for vocab in (1, 2, 63, 64, 65) for k in (0, 9)]
DRAWS += [(Sampling(0.9, 0.8, k), torch.float32, 16, 1000, {"tile": 256}) for k in (0, 9)]
# A small nucleus refuses many winners: the passes decide some of the races, the last program the rest.
DRAWS += [(Sampling(1.5, 0.02), torch.float32, 200, 150, {"judged": judged}) for judged in (1, 3)]


@pytest.mark.parametrize(("how", "dtype", "rows", "vocab", "cut"), DRAWS, ids=str)
def test_every_draw_is_that_of_the_cpu(how, dtype, rows, vocab, cut):
    logits, at = make_logits(vocab, torch.Generator().manual_seed(1), rows).to(dtype), at_random(rows)
    given = logits[:, None], at, *place_rules(how), None
    tokens, masses = draws.draw(*given, **{"rows": 512, "tile": 64} | cut)
    expected, known = plain.draw(*given)
    assert tokens.tolist() == expected.tolist()
    np.testing.assert_allclose(masses, known, rtol=1e-6)


def test_each_row_has_its_own_rule_and_row_of_logits():
    """Rows of a padded vocabulary are picked out without a copy, some twice, some never; who asks for nothing gets 0."""
    logits, at = make_logits(120, torch.Generator().manual_seed(1), 40)[:, :97], at_random(33)
    hows = [SAMPLINGS[i % len(SAMPLINGS)] for i in range(33)]
    asked = torch.arange(33) * 7 % 40
    asked[5] = asked[20] = -1
    given = logits[:, None], at, *place_rules(*hows), asked
    tokens, masses = draws.draw(*given, rows=16, tile=32)
    assert torch.equal(tokens, torch.where(asked < 0, 0, plain.draw(*given)[0]))
    assert masses[[5, 20]].tolist() == [1, 1]


@pytest.mark.parametrize("how", SAMPLINGS[:6], ids=str)  # greedy, plain, by top-p, by top-k, and by both
def test_logits_that_are_no_distribution_end_in_some_token_and_are_told(how):
    logits = torch.zeros(4, 97)
    logits[0, 5], logits[1, 5], logits[2] = torch.nan, torch.inf, -torch.inf
    given = logits[:, None], at_random(4), *place_rules(how), None
    tokens, masses = draws.draw(*given, rows=4, tile=32)
    assert ((tokens >= 0) & (tokens < 97)).all()
    assert masses.isnan().tolist() == plain.draw(*given)[1].isnan().tolist() == [True, True, True, False]

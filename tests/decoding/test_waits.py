"""How often the host waits for a GPU, counted on a simulated one; the texts stay those of lockstep."""

import pytest
from helpers.pairs import POLICIES, SAMPLED, save_small_pair
from helpers.simulated_gpu import simulated_gpu

from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.forward.reader import Drafted
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_small_pair(tmp_path_factory.mktemp("waits"))


@pytest.fixture
def own_pair(folders):
    return Pair(Member("base", str(folders["base"])), Member("guide", str(folders["guide"])))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", ["disagreement", "js", "guide"])
def test_a_block_waits_once_for_each_drafted_token_and_once_for_its_verification(
    own_pair, prompts, monkeypatch, name, traced
):
    requests = [Request(p, 0, 12 + 4 * i, SAMPLED) for i, p in enumerate(prompts)]
    expected = dict(lockstep.generate(own_pair, POLICIES[name], requests, batch_size=4))
    counted, fetched = [], []
    with simulated_gpu(own_pair, monkeypatch) as gpu:
        advance, fetch = blockwise.Blocks.advance, Drafted.fetch

        def counting(self, slots):
            gpu.counts, gpu.waits = True, 0
            fetched.clear()
            try:
                return advance(self, slots)
            finally:
                gpu.counts = False
                counted.append((len(fetched), gpu.waits))

        monkeypatch.setattr(blockwise.Blocks, "advance", counting)
        monkeypatch.setattr(Drafted, "fetch", lambda self: fetched.append(self) or fetch(self))
        options = {"batch_size": 4, "block_size": 6, "traced": traced}
        made = dict(blockwise.generate(own_pair, POLICIES[name], requests, **options))
    assert not gpu.faults, sorted(set(gpu.faults))
    assert {i: g.tokens for i, g in made.items()} == {i: g.tokens for i, g in expected.items()}
    assert len(counted) > 3 and all(waits == drafted + 1 for drafted, waits in counted), counted

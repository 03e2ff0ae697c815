"""How often the host waits for a GPU, counted on a simulated one; the texts stay those of lockstep."""

import pytest
from helpers.pairs import METHODS, POLICIES, SAMPLED, texts
from helpers.simulated_gpu import CUDA, OTHER, simulated_gpu

from lm_eval_takeover.decoding import blockwise, lockstep, stepwise
from lm_eval_takeover.decoding.costs import MismatchRates
from lm_eval_takeover.forward.reader import Reader
from lm_eval_takeover.method.request import Request


@pytest.mark.parametrize(
    ("name", "traced"),
    [("disagreement", False), ("guide", True), ("entropy", True), ("random", False), ("base", False)],
)
def test_each_drawn_token_is_waited_for_once_and_no_verdict_beside_it(own_pair, prompts, monkeypatch, name, traced):
    """Tokens one step late: while the host enters a token, the next one is computed. A draft's last one is in the verdict.

    What a verdict says of later drafts is learned behind the launch of the next block's first pass.
    """
    verified = name in ("disagreement", "js", "guide")
    requests = [Request(p, 0, 10 + 2 * i, SAMPLED) for i, p in enumerate(prompts)]
    expected = dict(lockstep.generate(own_pair, POLICIES[name], requests, batch_size=4))
    kind = blockwise.Blocks if verified else stepwise.Stepwise
    # Passes that drew a token of each row, waits and uploads; nothing else waits.
    counted, drawn, learned, advance, learn = [], [], [], kind.advance, MismatchRates.learn

    def counting(self):
        gpu.counts, gpu.waits, gpu.uploads = True, 0, 0
        drawn.clear()
        try:
            advance(self)
        finally:
            gpu.counts = False
            counted.append((len(drawn), gpu.waits, gpu.uploads))

    with simulated_gpu(own_pair, monkeypatch) as gpu:
        monkeypatch.setattr(kind, "advance", counting)
        monkeypatch.setattr(MismatchRates, "learn", lambda *given: learned.append(len(drawn)) or learn(*given))
        for each in ("draft", "draw"):
            plain = getattr(Reader, each)
            count = lambda *given, plain=plain: drawn.append(given) or plain(*given)  # noqa: E731
            monkeypatch.setattr(Reader, each, count if each == "draft" else staticmethod(count))
        options = {"batch_size": 4, "block_size": 6 if name == "guide" else None, "traced": traced}
        made = dict(blockwise.generate(own_pair, POLICIES[name], requests, **options))
    assert not gpu.faults, sorted(set(gpu.faults))
    assert texts(made) == texts(expected)
    assert len(counted) > 3 and all(waits == drawn for drawn, waits, _ in counted), counted
    assert max(drawn for drawn, *_ in counted) > 1
    if name == "disagreement":
        assert set(learned) == {1} and len(learned) == len(counted) - 1
        # Tokens and words, the lengths of each model's rows, those of the drafts, and positions.
        assert max(uploads for *_, uploads in counted) == 5, counted


@pytest.mark.parametrize(("name", "first"), [("disagreement", OTHER), ("surprise", CUDA), ("entropy", OTHER)])
def test_models_on_any_gpus_write_the_same(own_pair, prompts, monkeypatch, name, first):
    """No kernel beside the device of its tensors; rows on both sides of 256 columns, and several groups in a step."""
    monkeypatch.setattr(stepwise, "_UNREAD_AT_ONCE", 1)
    policy, longer = (POLICIES | METHODS)[name], (prompts[0] * 9)[:240]
    requests = [Request(text, 0, 24, SAMPLED) for text in (longer, longer[:150], *prompts[2:])]
    expected = dict(lockstep.generate(own_pair, policy, requests, batch_size=4, traced=True))
    with simulated_gpu(own_pair, monkeypatch, (first, OTHER)) as gpu:
        made = dict(blockwise.generate(own_pair, policy, requests, batch_size=4, traced=True))
    assert not gpu.faults, sorted(set(gpu.faults))
    assert texts(made) == texts(expected)
    if policy.drafts:
        for i, one in made.items():
            assert list(one.observed) == pytest.approx(list(expected[i].observed), rel=1e-2, abs=1e-3, nan_ok=True)

"""What preparing a model's forward pass tells its user, and what it leaves as it was."""

import pytest
import torch

from lm_eval_takeover.forward.forward_pass import ForwardPass
from lm_eval_takeover.forward.lean_decoder import LeanDecoder
from lm_eval_takeover.pair.member import Member


@pytest.mark.parametrize(("role", "argument"), [("base", "dtype"), ("guide", "guide_dtype")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("computes", [False, True], ids=["emulated", "native"])
def test_bfloat16_that_is_emulated_is_told_with_the_argument(
    random_pair, monkeypatch, caplog, role, argument, dtype, computes
):
    monkeypatch.setattr("lm_eval_takeover.forward.projection.computes_bfloat16", lambda: computes)
    monkeypatch.setattr("lm_eval_takeover.forward.forward_pass.computes_bfloat16", lambda: computes)
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


def test_one_unlikely_token_that_is_far_off_does_not_refuse_the_lean_pass(random_pair, monkeypatch, caplog):
    """Bfloat16 moves the largest of a million log-probabilities by more than any bound; what is drawn hardly changes."""
    plain = LeanDecoder.compute_logits

    def off(by, rows):
        def compute(self, hidden, vocab):
            logits = plain(self, hidden, vocab).clone()
            logits[..., :rows] += by
            return logits

        return compute

    member = Member("base", str(random_pair["base"]))
    least = int(member.model(torch.arange(9)[None]).logits.mean((0, 1)).argmin())
    monkeypatch.setattr(
        LeanDecoder, "compute_logits", lambda self, hidden, vocab: _moved(plain(self, hidden, vocab), least)
    )
    assert ForwardPass(member).lean is not None
    monkeypatch.setattr(LeanDecoder, "compute_logits", off(0.1, 100))
    assert ForwardPass(Member("base", str(random_pair["base"]))).lean is None
    assert "the lean pass is not used, since it differs from transformers' own by a total variation of" in caplog.text


def _moved(logits, token):
    logits = logits.clone()
    logits[..., token] -= 3.0
    return logits

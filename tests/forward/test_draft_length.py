"""A draft is as long as it may be, or as its logits leave room for."""

from lm_eval_takeover.forward.draft_length import LONGEST, longest_draft


def test_logits_of_many_rows_or_tokens_shorten_a_draft():
    assert longest_draft(1, 512) == LONGEST
    assert longest_draft(8, 151_936) == 55  # 2^26 logits
    assert longest_draft(10**6, 151_936) == 1

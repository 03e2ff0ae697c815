"""The rule of `block_size=auto` for vLLM."""

from lm_eval_takeover.vllm.block_rule import choose_block, token_time

SMALL_BASE = {"ratio": 0.6 / 8, "ends": 0.05}


def test_one_request_on_a_gpu_is_drafted_and_many_are_fused():
    assert choose_block(rows=1, device="cuda", **SMALL_BASE).block > 4
    assert choose_block(rows=256, device="cuda", **SMALL_BASE).block == 1


def test_drafts_get_no_longer_as_the_batch_grows():
    lengths = [choose_block(rows=rows, device="cuda", **SMALL_BASE).block for rows in (1, 4, 16, 64, 256)]
    assert lengths == sorted(lengths, reverse=True)


def test_nothing_is_drafted_where_drafts_end_at_once():
    assert choose_block(ratio=0.5, rows=1, ends=1.0, device="cuda").block == 1


def test_the_time_of_a_draft_is_that_of_its_passes_over_what_stands():
    time = token_time(4, ratio=0.1, rows=1, ends=0.5, read_together=256)
    assert time == (4 * 0.1 + 1) / (1 + 0.5 + 0.25 + 0.125)

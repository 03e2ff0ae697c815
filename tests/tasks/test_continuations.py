"""Texts whose log-likelihood is asked for, cut as lm-eval's `hf` cuts them."""

from lm_eval_takeover.tasks.instances import cut_to_context, list_rolling_windows


def test_every_token_of_a_long_text_is_in_one_continuation():
    texts = [list(range(10, 33)), [], [7]]
    windows = list_rolling_windows(texts, prefix=0, max_length=8)
    for index, tokens in enumerate(texts):
        mine = [(context, continuation) for owner, context, continuation in windows if owner == index]
        assert [token for _, continuation in mine for token in continuation] == tokens
        assert all(len(context) + len(continuation) <= 8 + 1 for context, continuation in mine)
        assert all(context for context, _ in mine)


def test_texts_are_cut_from_the_left_and_the_last_token_is_only_predicted(caplog):
    texts = [([1, 2, 3], [4, 5]), ([], [4]), ([1], []), ([1, 2, 3, 4], [5, 6]), ([1], [2, 3, 4, 5, 6])]
    assert cut_to_context(texts, prefix=0, max_length=4) == {
        0: ([1, 2, 3], [4, 5]),
        1: ([0], [4]),
        3: ([2, 3, 4], [5, 6]),
        4: ([2], [3, 4, 5, 6]),
    }
    assert "2 of 5 texts are longer than the context of 4 tokens; truncated from the left" in caplog.text

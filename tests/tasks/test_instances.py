"""What lm-eval's requests ask for: decoding settings, and texts whose log-likelihood is asked for, cut as its `hf` cuts them."""

import pytest
from helpers.one_line import one_line

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.tasks.instances import LENGTHS, cut_to_context, list_rolling_windows, read_generation_settings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"until": "x"}, (Sampling(), ("x",), 256)),
        ({"temperature": 0.7, "top_k": 5, "max_new_tokens": 9}, (Sampling(0.7, 1.0, 5), (), 9)),
        ({"do_sample": False, "temperature": 0.0}, (Sampling(), (), 256)),
        ({"temperature": 0.7, "min_p": 0.1}, (Sampling(0.7, min_p=0.1), (), 256)),
        # as model cards print them
        (
            {"temperature": 0.7, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0.0, "frequency_penalty": "0"},
            (Sampling(0.7), (), 256),
        ),
        *(({"max_gen_toks": 99, name: 9}, (Sampling(), (), 9)) for name in LENGTHS[1:]),  # the command line's stands behind
        ({"max_new_tokens": 99, "max_gen_toks": 9, "max_tokens": None}, (Sampling(), (), 9)),
    ],
)
def test_generation_settings_are_read_as_hf_reads_them(settings, expected):
    assert read_generation_settings(settings, 256) == expected


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"do_sample": True, "temperature": 0.0}, "temperature=0 with do_sample=True"),
        ({"do_sample": True, "temperature": -1}, "temperature=-1.0"),
        ({"max_gen_toks": 0}, "max_gen_toks=0 is not at least 1 token"),
        ({"max_gen_toks": -5}, "max_gen_toks=-5"),
        ({"max_gen_toks": "many"}, "cannot be read"),
        ({"max_gen_toks": float("inf")}, "cannot be read"),
        ({"temperature": 1e-50}, "temperature=1e-50 is neither 0"),
        ({"temperatur": 1}, "generation setting 'temperatur=1' is not known; did you mean 'temperature'?"),
        ({"num_beams": 4}, "num_beams=4"),
        ({"repetition_penalty": 1.05}, "generation setting 'repetition_penalty=1.05' is not known"),
        ({"presence_penalty": 1.5}, "generation setting 'presence_penalty=1.5' is not known"),
        ({"frequency_penalty": "some"}, "cannot be read"),
        ({"temperature": 1, "min_p": 1.5}, "min_p=1.5 is outside [0, 1]"),
        ({"until": [1]}, r"until=[1] is not a list of texts"),
    ],
)
def test_impossible_generation_settings_are_refused(settings, text):
    with one_line(ArgumentError, text):
        read_generation_settings(settings, 256)


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

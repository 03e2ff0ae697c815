"""Decoding settings of a task as they are read off lm-eval's requests."""

import pytest

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.tasks.instances import read_generation_settings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"until": "x"}, (Sampling(), ("x",), 256)),
        ({"temperature": 0.7, "top_k": 5, "max_new_tokens": 9}, (Sampling(0.7, 1.0, 5), (), 9)),
        ({"do_sample": False, "temperature": 0.0}, (Sampling(), (), 256)),
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
        ({"until": [1]}, r"until=[1] is not a list of texts"),
    ],
)
def test_impossible_generation_settings_are_refused(settings, text):
    with pytest.raises(ArgumentError) as caught:
        read_generation_settings(settings, 256)
    assert text in str(caught.value)

"""What a client asks becomes requests of one sample, or one line that says why not, whatever the body is."""

import json
from dataclasses import replace

import pytest
from helpers.pairs import POLICIES
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_eval_takeover.vllm.client_request import DEEPEST, MOST_SAMPLES, Repeats, parse_body, split_request
from lm_eval_takeover.vllm.settings import EngineSettings, RequestSettings, describe_policy

ENGINE = EngineSettings(policy=describe_policy(POLICIES["disagreement"]), vocab=512, ends=[1])
PLAIN = {"model": "guided", "prompt": "2 + 2 ="}


def split(body, **engine):
    return split_request(body, replace(ENGINE, **engine), Repeats())


@pytest.mark.parametrize("asked", [{"logprobs": 1}, {"logprobs": True, "top_logprobs": 2}, {"logprobs": 0}])
def test_log_probabilities_of_drafts_are_refused(asked):
    assert split(PLAIN | asked)[0].body["logprobs"] == asked["logprobs"]
    with pytest.raises(ValueError, match=r"logprobs=.* verifies drafts of 4 tokens, .*; start one with block_size=1"):
        split(PLAIN | asked, block=4)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"n": 20_000}, "n=20000; expected a whole number from 1 to 256"),
        ({"n": -1}, "n=-1; expected"),
        ({"n": 2.5}, r"n=2\.5; expected"),
        ({"n": 2, "prompt": ["a"] * MOST_SAMPLES}, "is more than 256 samples; send several requests"),
        ({"top_k": 10**400}, "top_k=.*; expected"),
        ({"temperature": "0.5"}, r'temperature="0\.5"; expected a number'),
        ({"prompt": [3, 512]}, "512 is no token; expected ids from 0 to 511"),
        ({"prompt": []}, "is no token"),
        ({"prompt": {"a": 1}}, "expected a text, token ids, or a list of them"),
        ({"stop_token_ids": "x"}, "stop_token_ids is .*expected a list"),
        ({"vllm_xargs": {"takeover_run": "x" * 300}}, "expected a text of at most 200"),
        ({"vllm_xargs": {"takeover_sealed": "{}"}}, "unknown setting 'takeover_sealed'"),
    ],
)
def test_what_is_out_of_bounds_is_one_line(body, message):
    with pytest.raises(ValueError, match=message) as error:
        split(PLAIN | body)
    assert len(str(error.value)) < 250


def test_only_so_many_prompts_are_remembered():
    repeats = Repeats(most=3)
    assert [repeats.next("", prompt) for prompt in "aabcd"] == [0, 1, 0, 0, 0]
    assert len(repeats) == 3
    assert (repeats.next("", "a"), repeats.next("", "d"), repeats.next("run", "d")) == (0, 1, 0)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8), lambda inner:
    st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4), max_leaves=8,
)  # fmt: skip
NAMES = ("prompt", "messages", "n", "stream", "stream_options", "vllm_xargs", "temperature", "top_p", "top_k", "seed",
         "stop_token_ids", "logprobs")  # fmt: skip
XARGS = st.dictionaries(
    st.sampled_from(["tau", "kappa", "window", "rate", "sample", "run", "trace", "policy", "forced", "sealed", "seal", "id"])
    .map("takeover_{}".format), ANYTHING,
)  # fmt: skip
BODIES = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, ANYTHING) | {"vllm_xargs": XARGS | ANYTHING})


@pytest.mark.fuzz
@settings(max_examples=200)
@given(st.binary(max_size=60) | (ANYTHING | BODIES.map(PLAIN.__or__)).map(json.dumps).map(str.encode))
def test_any_body_is_samples_or_one_line(data):
    try:
        asked = split(parse_body(data))
    except ValueError:
        return
    assert 1 <= len(asked) <= MOST_SAMPLES
    for one in asked:
        assert json.loads(json.dumps(one.body, allow_nan=False))["n"] == 1
        sealed = json.loads(one.body["vllm_xargs"]["takeover_sealed"])
        assert not sealed.keys() & {"forced", "compared", "scored", "lockstep", "donor_length", "policy"}
        RequestSettings(**sealed)


def test_depth_is_bounded():
    nested = b'{"a": ' * DEEPEST + b"1" + b"}" * DEEPEST
    assert parse_body(nested)
    for data in (b'{"a": ' + nested + b"}", b'{"a": ' * 100_000):
        with pytest.raises(ValueError, match=r"nested deeper|Expecting"):
            parse_body(data)

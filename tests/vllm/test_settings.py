"""What rides on a request to vLLM's workers."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers.pairs import METHODS, POLICIES

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.vllm.settings import RequestSettings, change_policy, check_params, describe_policy, name_policy


def params(**extra):
    return SimpleNamespace(extra_args=extra)


def test_a_request_travels_there_and_back():
    settings = RequestSettings(id="7", sample=3, temperature=0.6, top_p=0.95, forced=(1, 2), donor_length=9)
    sealed = params(**settings.to_extra_args())
    check_params(sealed)
    assert RequestSettings.read(sealed) == settings


def test_what_a_worker_cannot_trust_or_honour_is_refused_before_it_sees_it():
    forged = {"takeover_sealed": '{"forced": [1000000000]}'}
    for extra in ({}, {"takeover_tau": 2.5}, forged, forged | {"takeover_seal": "0" * 64}):
        with pytest.raises(ArgumentError, match="a request without this package's seal"):
            check_params(params(**extra))
    asked = params(**RequestSettings().to_extra_args())
    asked.min_tokens = 3
    with pytest.raises(ArgumentError, match="min_tokens: guided texts are drawn without it; leave it out"):
        check_params(asked)


def test_settings_change_the_policy_and_what_it_does_not_read_is_an_error():
    policy = POLICIES["disagreement"]
    changed = change_policy(policy, {"tau": 2.5})
    assert changed == replace(policy, gate=replace(policy.gate, tau=2.5))
    assert RequestSettings(policy=name_policy(changed)).choose_policy(policy) == changed
    assert change_policy(POLICIES["random"], {"rate": 0.5}).rate == 0.5
    with pytest.raises(ArgumentError, match=r"takeover_rate=0\.5 is not read by policy=disagreement"):
        change_policy(policy, {"rate": 0.5, "tau": 3.0})
    with pytest.raises(ArgumentError, match=r"kappa=2.* needs scores above 0, not score=log_ratio"):
        change_policy(METHODS["log_ratio"], {"kappa": 2.0})


def test_a_policy_that_reads_the_text_is_refused_at_the_start_and_by_request():
    said = "policy=segment reads the text so far, which backend=vllm does not show a policy; use backend=hf"
    with pytest.raises(ArgumentError, match=said):
        describe_policy(METHODS["segment"])
    with pytest.raises(ArgumentError, match=said):
        RequestSettings(policy='{"name": "segment"}').choose_policy(POLICIES["disagreement"])

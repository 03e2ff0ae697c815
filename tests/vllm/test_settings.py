"""What rides on a request to vLLM's workers."""

from types import SimpleNamespace

import pytest
from helpers.pairs import METHODS, POLICIES

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.vllm.settings import RequestSettings, check_params, describe_policy


def params(**extra):
    return SimpleNamespace(extra_args=extra, seed=None, temperature=0.7, top_p=0.9, top_k=-1)


def test_a_request_travels_there_and_back():
    settings = RequestSettings(id="7", sample=3, temperature=0.6, top_p=0.95, forced=(1, 2), donor_length=9)
    sealed = params(**settings.to_extra_args())
    check_params(sealed)
    assert RequestSettings.read(sealed) == settings


def test_a_plain_request_is_drawn_as_its_sampling_parameters_say():
    asked = params(takeover_tau="2.5", session_id="another's")
    check_params(asked)
    settings = RequestSettings.read(asked, seed=11)
    assert (settings.temperature, settings.top_p, settings.top_k, settings.seed) == (0.7, 0.9, 0, 11)
    assert settings.choose_policy(POLICIES["disagreement"]).gate.tau == 2.5
    asked.min_tokens = 3
    with pytest.raises(ArgumentError, match="min_tokens: guided texts are drawn without it; leave it out"):
        check_params(asked)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"takeover_tua": 1}, "unknown setting 'takeover_tua'; did you mean 'tau'"),
        ({"takeover_tau": "high"}, "takeover_tau='high' is not a number from -1e"),
        ({"takeover_tau": -1e10}, "takeover_tau='-10000000000.0' is not a number from -1e"),
        ({"takeover_tau": float("inf")}, "takeover_tau='inf' is not"),
        ({"takeover_kappa": "nan"}, "takeover_kappa='nan' is not"),
        ({"takeover_window": 10**9}, "is not a whole number from 1 to 4096"),
        ({"takeover_window": 2.5}, r"takeover_window='2\.5' is not a whole number"),
        ({"takeover_sample": [1]}, "is not a whole number"),
        ({"takeover_rate": 10**400}, "is not a number from 0 to 1"),
        ({"takeover_forced": 1}, "unknown setting 'takeover_forced'"),
        ({"takeover_sealed": '{"forced": [1000000000]}'}, "'takeover_sealed' is none of a client's settings"),
        ({"takeover_sealed": "{}", "takeover_seal": "0" * 64}, "'takeover_sealed' is none of a client's settings"),
    ],
)
def test_what_no_client_may_set_is_refused_before_a_worker_sees_it(extra, message):
    with pytest.raises(ArgumentError, match=message):
        check_params(params(**extra))


def test_what_a_policy_does_not_read_is_an_error_where_it_can_be_told_and_never_in_a_worker():
    settings, policy = RequestSettings.read(params(takeover_rate=0.5, takeover_tau=3)), POLICIES["disagreement"]
    with pytest.raises(ArgumentError, match=r"takeover_rate=0\.5 is not read by policy=disagreement"):
        settings.choose_policy(policy)
    assert settings.choose_policy(policy, strict=False).gate.tau == 3
    assert settings.choose_policy(POLICIES["random"], strict=False).rate == 0.5
    log_ratio = METHODS["log_ratio"]  # its gate has no window test
    assert RequestSettings.read(params(takeover_kappa=2)).choose_policy(log_ratio, strict=False) == log_ratio


def test_a_policy_that_reads_the_text_is_refused_at_the_start_and_by_request():
    said = "policy=segment reads the text so far, which backend=vllm does not show a policy; use backend=hf"
    with pytest.raises(ArgumentError, match=said):
        describe_policy(METHODS["segment"])
    with pytest.raises(ArgumentError, match=said):
        RequestSettings(policy='{"name": "segment"}').choose_policy(POLICIES["disagreement"])

"""What rides on a request to vLLM's workers."""

from types import SimpleNamespace

import pytest
from helpers.pairs import POLICIES

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.vllm.settings import RequestSettings


def params(**extra):
    return SimpleNamespace(extra_args=extra, seed=None, temperature=0.7, top_p=0.9, top_k=-1)


def test_a_request_travels_there_and_back():
    settings = RequestSettings(
        id="7", sample=3, temperature=0.6, top_p=0.95, traced=True, forced=(1, 2), donor_length=9
    )
    assert RequestSettings.read(params(**settings.to_extra_args())) == settings


def test_a_plain_request_is_drawn_as_its_sampling_parameters_say():
    settings = RequestSettings.read(params(takeover_tau="2.5"), seed=11)
    assert (settings.temperature, settings.top_p, settings.top_k, settings.seed) == (0.7, 0.9, 0, 11)
    assert settings.choose_policy(POLICIES["disagreement"]).gate.tau == 2.5


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"takeover_tua": 1}, "unknown setting 'takeover_tua'; did you mean 'tau'"),
        ({"takeover_tau": "high"}, "takeover_tau='high' is not"),
        ({"takeover_tau": -1}, "tau=-1.0 is not a number of at least 0"),
        ({"takeover_rate": 0.5}, "takeover_rate=0.5 is not read by policy=disagreement"),
    ],
)
def test_wrong_settings_are_one_line(extra, message):
    with pytest.raises(ArgumentError, match=message):
        RequestSettings.read(params(**extra)).choose_policy(POLICIES["disagreement"])

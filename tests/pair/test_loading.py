"""From model arguments to a gate: published thresholds are chosen by column, never guessed."""

import re

import pytest

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.calibration.files import ModelId
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.pair.loading import OF_METHODS, check_arguments, load_pair, load_policy, refuse_unread

NAME = "qwen3-0.6b-base+qwen3-8b"
NAMED = {"base": "Qwen/Qwen3-0.6B-Base", "guide": "Qwen/Qwen3-8B"}


@pytest.fixture
def published_pair():
    """A pair that goes by the names of the published table."""
    pair = load_pair(ModelArguments())
    pair.base.id, pair.guide.id = (ModelId(name, None) for name in NAMED.values())
    return pair


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ({}, "calibration: "),
        ({"calibration": NAME}, "calibration: "),
        ({"spike_ratio": 0.03}, "spike_ratio=0.03: "),
        ({"target_rate": 0.08}, "target_rate=0.08: "),
        ({"calibration": f"{NAME}:2", "spike_ratio": 0.03}, "spike_ratio=0.03: "),
    ],
)
def test_no_column_is_guessed_and_calibrating_is_offered_first(published_pair, arguments, start):
    with pytest.raises(ArgumentError) as caught:
        load_policy(ModelArguments(**NAMED, **arguments), published_pair)
    text = str(caught.value)
    assert text.startswith(f"{start}'{NAME}' is a published table")
    command = "lm-eval-takeover calibrate --base Qwen/Qwen3-0.6B-Base --guide Qwen/Qwen3-8B --prompts openai/gsm8k:main"
    assert text.index(command) < text.index(f"{NAME}:1")
    columns = ("1 (tau=3.667, kappa=24.443)", "2 (tau=0.467, kappa=3.114)", "3 (tau=0.239, kappa=1.591)")
    assert ", ".join(f"{NAME}:{column}" for column in columns) in text
    assert "\n" not in text


def test_a_named_column_is_the_gate(published_pair):
    policy, origin = load_policy(ModelArguments(**NAMED, calibration=f"{NAME}:2"), published_pair)
    assert policy.gate == Gate(0.467, 3.114, 10)
    assert (origin.calibration, origin.spike_ratio) == (f"{NAME}:2", None)


READ = {
    "disagreement": "score score_top_p chance spike_ratio tau kappa kappa_rule window target_rate calibration direction",
    "random": "rate target_rate calibration direction",
    "early": "rate early_tokens target_rate calibration direction",
    "base": "",
    "guide": "",
    "lossy": "target_rate calibration direction",
    "ensemble": "target_rate calibration direction",
}
READ |= dict.fromkeys(("entropy", "segment"), READ["disagreement"])
OTHERS = {  # of each argument a value that is not its default
    "score": "js", "score_top_p": 0.9, "calibration": "demo", "spike_ratio": 0.1, "target_rate": 0.05, "tau": 2.0, "kappa": 1.5,
    "window": 3, "kappa_rule": "tail_to_mean", "chance": 0.5, "direction": "reverse", "rate": 0.2, "early_tokens": 5,
}  # fmt: skip


@pytest.mark.parametrize("policy", READ)
@pytest.mark.parametrize("name", [name for name in OF_METHODS if name != "kappa"])  # which needs tau
def test_an_argument_of_another_policy_is_refused_by_the_name_of_those_that_read_it(policy, name):
    arguments, kind = ModelArguments(policy=policy, **{name: OTHERS[name]}), policies.get(policy)
    if name in READ[policy].split():
        refuse_unread(arguments, kind)
        return
    with pytest.raises(ArgumentError) as caught:
        refuse_unread(arguments, kind)
    text = str(caught.value)
    assert text.startswith(f"{name}={OTHERS[name]} is read by policy=") and text.endswith(f", not {policy}; leave it out")
    assert all(other in text for other in READ if name in READ[other].split())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"policy": "random", "rate": 0.05, "tau": 2},
            "tau=2.0 is read by policy=disagreement, entropy or segment, not random",
        ),
        ({"policy": "random", "rate": 0.05, "target_rate": 0.05}, "give target_rate=0.05 or rate=0.05, not both"),
        ({"policy": "lossy", "leniency": 0.5, "target_rate": 0.05}, "give target_rate=0.05 or leniency=0.5, not both"),
        ({"policy": "random", "rate": 0.05, "calibration": "demo"}, "calibration='demo' is read with target_rate=…"),
    ],
)
def test_what_nothing_reads_is_refused(arguments, text):
    with pytest.raises(ArgumentError, match=re.escape(text)):
        check_arguments(arguments)

"""Model arguments: types, ranges, and errors that name the argument, the value and the way out."""

import pytest
from helpers.one_line import one_line

from lm_eval_takeover.arguments import KINDS, TWINS, VLLM_INSTEAD, Kind, ModelArguments
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.documents import HARMLESS
from lm_eval_takeover.vllm.launch import refuse_others


def parse(**values):
    return ModelArguments.parse(values)


def test_command_line_values_are_typed():
    made = parse(tau="1.5", kappa=2, window="7", trust_remote_code="true", batch_size="auto:4", base=7, seed=2**60 + 1)
    assert (made.tau, made.kappa, made.window, made.trust_remote_code, made.rows) == (1.5, 2.0, 7, True, 64)
    assert (made.base, made.seed) == ("7", 2**60 + 1)
    assert [parse(think_end_token=end).think_end_token for end in ("</thought>", "7")] == ["</thought>", 7]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"spike_ration": 0.1}, "unknown model argument 'spike_ration'; did you mean 'spike_ratio'?"),
        ({"parallelize": True}, "argument 'parallelize'; device_map=auto spreads the layers over all devices"),
        ({"pretrained": "x"}, "argument 'pretrained'; base=… and guide=… name the two models"),
        ({"zzz": 1}, "argument 'zzz'; the nearest of "),
        ({"window": "ten"}, "window='ten' is not a whole number"),
        ({"tau": "high"}, "tau='high' is not a number"),
        ({"tau": True}, "tau=True is not a number"),
        ({"trust_remote_code": "maybe"}, "trust_remote_code='maybe' is not true or false"),
        ({"policy": None}, "policy=None has no value"),
        ({"block_size": 0}, "block_size=0 is neither 'auto' nor a whole number of at least 1"),
        ({"seed": 2**63}, "seed=9223372036854775808 is not a whole number"),
        ({"batch_size": 8.5}, "batch_size=8.5 is neither"),
        ({"window": 0}, "window=0 is not at least 1 token"),
        ({"run_dir": "a\udc80\0"}, r"run_dir='a\udc80\x00' holds a character that UTF-8"),
        ({"spike_ratio": float("nan")}, "spike_ratio=nan is not a number"),
        ({"base": ""}, "base= is empty"),
        ({"max_length": 0}, "max_length=0 is not at least 1"),
        ({"backend": "jax"}, "backend='jax' is not known"),
        ({"kappa": 2.0}, "kappa=2.0 sets the gate by hand and needs tau"),
        ({"tau": 1.0, "spike_ratio": 0.03}, "tau=1.0 sets the gate by hand, so spike_ratio=0.03 would be ignored"),
        ({"target_rate": 0.05, "spike_ratio": 0.03}, "give target_rate=0.05 or spike_ratio=0.03, not both"),
        ({"target_rate": 1.5}, "target_rate=1.5 is outside 0..1"),
    ],
)
def test_errors_name_argument_value_and_way_out(values, text):
    with one_line(ArgumentError, text):
        parse(**values)


def test_every_argument_says_once_what_it_is_for():
    """Its field alone says it: keys of samples (tests/runs/test_identity.py) and all tables of arguments follow."""
    for name, kind in KINDS.items():
        assert isinstance(kind, Kind) and (name in HARMLESS) == (kind.key is None and name != "model"), name
        assert not kind.own or name in ("base", "guide") or name.removeprefix("guide_") in TWINS, name


@pytest.mark.parametrize("name", VLLM_INSTEAD)
def test_vllm_names_what_it_has_instead(name):
    refuse_others(ModelArguments())
    with pytest.raises(ArgumentError, match=f"{name}=x is read by backend=hf; backend=vllm has {VLLM_INSTEAD[name]}"):
        refuse_others(ModelArguments(**{name: "x"}))


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_stands_for_the_guide_alone(name):
    of_base, of_both = ModelArguments(**{name: "x"}), ModelArguments(**{name: "x", TWINS[name]: "y"})
    assert getattr(of_base.for_role("base"), name) == getattr(of_both.for_role("base"), name) == "x"
    assert getattr(of_both.for_role("guide"), name) == "y"
    assert getattr(of_base.for_role("guide"), name) == (None if KINDS[name].own else "x")
    assert KINDS[name] == KINDS[TWINS[name]]

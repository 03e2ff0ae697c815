"""Every model argument and generation setting is declared as changing a text or not, and the keys of samples follow it."""

import shutil
from dataclasses import replace

import pytest
from helpers.calibrations import calibrate_values
from lm_eval.api.instance import Instance

from lm_eval_takeover.arguments import KINDS
from lm_eval_takeover.calibration.files import read_calibration, write_calibration
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.runs.identity import collect_text_settings, sample_key
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.files import CALIBRATIONS
from lm_eval_takeover.tasks.context import Evaluation, evaluating
from lm_eval_takeover.tasks.instances import GENERATION_ARGUMENTS

HAND = {"tau": 1.5, "kappa": 2.0}
SETTINGS = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 30, "until": ["\n\n"]}
# For each argument: arguments of both runs, and what the second one adds.
READ_OFF = {"allow_calibration_mismatch": True, "calibration": "another one", "spike_ratio": 0.1, "target_rate": 0.05,
            "kappa_rule": "tail_to_mean"}  # fmt: skip
BY_HAND = {
    "base": "guide of the demo", "guide": "base of the demo", "score": "rkl", "tau": 1.25, "kappa": 0.0, "window": 11,
    "direction": "reverse", "block_size": 7, "seed": 1, "dtype": "bfloat16", "guide_dtype": "bfloat16", "device": "cpu",
    "guide_device": "cpu", "batch_size": 7, "max_batch_size": 7, "max_length": 40, "enable_thinking": False,
    "trust_remote_code": True, "model": "my-run", "run_dir": "another",
}  # fmt: skip
CHANGES = {name: ({}, {name: value}) for name, value in READ_OFF.items()}
CHANGES |= {name: (HAND, {name: value}) for name, value in BY_HAND.items()}
CHANGES |= {
    "policy": (HAND, {"policy": "entropy", "score": "entropy"}),
    "score_top_p": (HAND | {"score": "js"}, {"score_top_p": 0.9}),
    "rate": ({"policy": "random", "rate": 0.1}, {"rate": 0.2}),
    "early_tokens": ({"policy": "early", "early_tokens": 3}, {"early_tokens": 4}),
    "chance": ({"tau": 1.0}, {"chance": 0.5}),
    "max_gen_toks": (HAND | {"without": "max_gen_toks"}, {"max_gen_toks": 9}),
}
# Below, in tests/method and in tests/vllm. A BOS changes the prompt's ids, where the tokenizer has one.
TESTED_ELSEWHERE = {"backend", "plugins", "policy_arguments", "engine_arguments", "think_end_token"}
TESTED_ELSEWHERE |= {"add_bos_token", "guide_add_bos_token"}
# Of the base or of both, and of the guide alone.
LOADING = {
    "revision": "v2", "subfolder": "inner", "gguf_file": "q4.gguf", "peft": "acme/lora", "device_map": "auto",
    "attn_implementation": "eager", "load_in_4bit": True, "load_in_8bit": True,
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}  # fmt: skip
CHANGES |= {prefix + name: (HAND, {prefix + name: value}) for name, value in LOADING.items() for prefix in ("", "guide_")}
SETTING_CHANGES = {"until": ["\n"], "max_gen_toks": 29, "do_sample": False, "temperature": 0.7, "top_p": 0.9, "min_p": 0.1}
SETTING_CHANGES |= {"top_k": 5, "max_new_tokens": 29, "max_tokens": 29, "max_completion_tokens": 29}


@pytest.fixture(scope="module", autouse=True)
def _checkpoints_are_loaded_once():
    """Of each folder and dtype: what other arguments of loading change in the weights is not tried here."""
    plain, loaded = Member._load, {}

    def load_once(self, kind, **options):
        key = kind, self.path, options.get("dtype")
        if key not in loaded:
            loaded[key] = plain(self, kind, **options)
        return loaded[key]

    with pytest.MonkeyPatch.context() as patch, evaluating(Evaluation(pairs={})):
        patch.setattr(Member, "_load", load_once)
        yield


def keys(arguments, settings=SETTINGS, prompt="Problem: how far?"):
    """The keys of two samples of one prompt."""
    lm = GuidedTakeover(**arguments)
    lm.tokenizer.chat_template = "{{ messages[0].content }}{% if enable_thinking is false %}<think></think>{% endif %}"
    prompt = lm.apply_chat_template([{"role": "user", "content": prompt}])
    instance = Instance("generate_until", {"problem": prompt}, (prompt, settings), 0, metadata=("t", 0, 2))
    requests = lm.requests([instance] * 2)
    lm.close()
    return [sample_key(digest(lm), request) for request in requests]


def test_arguments_of_one_policy_change_its_keys_and_a_chance_of_1_is_the_gate_as_it_was():
    for arguments, change in (
        ({"policy": "lossy"}, {"leniency": 0.5}),
        ({"policy": "ensemble"}, {"weight": 0.25}),
        ({"policy": "segment", "tau": 1.0}, {"length": "sentence"}),
    ):
        assert keys(arguments) != keys(arguments | change)
    assert keys(HAND) == keys(HAND | {"chance": 1.0})


def digest(lm):
    return digest_of(collect_text_settings(lm.pair, lm.policy, lm.arguments))


def test_every_argument_and_setting_is_tried():
    assert CHANGES.keys() | TESTED_ELSEWHERE == KINDS.keys()
    assert set(GENERATION_ARGUMENTS) == SETTING_CHANGES.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_argument_changes_the_key_exactly_if_it_can_change_the_text(name, tmp_path, monkeypatch):
    first, more = (dict(part) for part in CHANGES[name])
    without = first.pop("without", None)
    settings = {k: v for k, v in SETTINGS.items() if k != without}
    for role in ("base", "guide"):
        if role in more:
            more[role] = str(DEMO["guide" if role == "base" else "base"])
            first[role] = str(DEMO[role])
            first.setdefault("base", str(DEMO["base"]))
            first.setdefault("guide", str(DEMO["guide"]))
    # What needs other packages, a GPU or other files: its keys are made with the weights as they are.
    monkeypatch.setattr("lm_eval_takeover.pair.member.repository_options", lambda given: {})
    monkeypatch.setattr("lm_eval_takeover.pair.member.model_options", lambda given, device: {})
    monkeypatch.setattr(Member, "_adapt", lambda self, model, adapter: model)
    if name == "calibration":
        demo = read_calibration(CALIBRATIONS / "demo.json")
        scores = {score: calibrate_values([0.5, 1.0, 2.0] * 99) for score in demo.scores}
        more["calibration"] = str(tmp_path / "other.json")
        write_calibration(replace(demo, scores=scores, targets=()), tmp_path / "other.json")
    if name == "run_dir":
        first["run_dir"], more["run_dir"] = str(tmp_path / "one"), str(tmp_path / "other")
    before, after = keys(first, settings), keys(first | more, settings)
    assert len({*before}) == len({*after}) == 2
    changes = KINDS[name].key is not None
    assert [one != other for one, other in zip(before, after, strict=True)] == [changes, changes]


def test_the_backend_changes_the_key():
    lm, other = GuidedTakeover(**HAND), GuidedTakeover(**HAND)
    assert digest(lm) == digest(other)
    other.arguments = replace(other.arguments, backend="vllm")
    assert digest(lm) != digest(other)


def test_generation_settings_and_prompts_change_the_key():
    before = {*keys(HAND)}
    for name, value in SETTING_CHANGES.items():
        assert not before & {*keys(HAND, SETTINGS | {name: value})}, name
    assert not before & {*keys(HAND, prompt="Problem: how far is it?")}


def test_equal_thresholds_are_equal_whatever_they_were_read_off():
    read_off = GuidedTakeover(spike_ratio=0.1)
    gate = read_off.policy.gate
    assert digest(read_off) == digest(GuidedTakeover(tau=gate.tau, kappa=gate.kappa))


def test_a_folder_counts_by_its_files_and_not_by_its_name(tmp_path):
    moved = {role: str(shutil.copytree(DEMO[role], tmp_path / role)) for role in DEMO}
    assert keys(HAND) == keys(HAND | moved)
    changed = shutil.copytree(DEMO["guide"], tmp_path / "changed")
    (changed / "modeling_mine.py").write_text("x = 1")
    assert keys(HAND) != keys(HAND | moved | {"guide": str(changed)})

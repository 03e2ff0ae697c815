"""The LM class and its arguments: repeats, truncation, log-likelihoods, chat templates, errors, and lm-eval's `hf`."""

import json
import re
import shutil

import pytest
import torch
from helpers import reference
from helpers.one_line import one_line
from helpers.pairs import save_random_model
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from scipy.special import log_softmax

from lm_eval_takeover.arguments import KINDS, TWINS, VLLM_INSTEAD, ArgumentKind, ModelArguments
from lm_eval_takeover.commands.calibrate.rollouts import Setup
from lm_eval_takeover.decoding.lockstep import generate
from lm_eval_takeover.demo import DEMO, calibration_prompts
from lm_eval_takeover.errors import ArgumentError, CalibrationError, TakeoverError, VocabularyError
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.results.documents import HARMLESS
from lm_eval_takeover.vllm.launch import refuse_others

PROMPTS = calibration_prompts()[:6]
SAMPLED = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 40, "until": []}


def instances(prompts, settings, repeats=1, task="some_task", kind="generate_until"):
    made = [Instance(kind, {}, (prompt, dict(settings)), 0, metadata=(task, i, repeats)) for i, prompt in enumerate(prompts)]
    return [instance for instance in made for _ in range(repeats)]


def test_the_demo_pair_and_its_calibration_are_the_defaults():
    info = GuidedTakeover().get_model_info()["takeover"]
    assert [info[role]["id"] for role in ("base", "guide")] == ["demo-base", "demo-guide"]
    assert info["dtypes"] == {"base": "torch.float32", "guide": "torch.float32"}
    gate = [info[name] for name in ("policy", "score", "spike_ratio", "kappa_rule", "calibration")]
    assert gate == ["disagreement", "ce", 0.03, "threshold_to_mean", "demo"]
    assert min(info["tau"], info["kappa"]) > 0


def test_tasks_are_reported_apart_and_together():
    lm = GuidedTakeover(batch_size=8, policy="random", rate=0.3, block_size=1)
    asked = instances(PROMPTS[:2], SAMPLED, 2, "a") + instances(PROMPTS[:1], SAMPLED, 1, "b")
    lm.generate_until(asked, disable_tqdm=True)
    info = lm.get_model_info()["takeover"]
    assert info["per_task"].keys() == {"a", "b"}
    for name in ("tokens", "takeovers", "base_passes", "guide_passes"):
        assert info[name] == sum(task[name] for task in info["per_task"].values())
    assert info["base_passes"] == info["guide_passes"] == info["tokens"] - 5  # nobody reads the last token of a text
    assert info["realized_rate"] == info["takeovers"] / info["tokens"]
    assert info["realized_rate"] == pytest.approx(0.3, abs=0.12)
    json.dumps(info)


@pytest.mark.parametrize("role", ["base", "guide"])
def test_greedy_texts_equal_those_of_hf(role):
    """The same prompts, stop strings and limit through lm-eval's own `hf` on that model, plain and in the chat template."""
    ours = GuidedTakeover(policy=role, batch_size=4)
    theirs = HFLM(pretrained=str(DEMO[role]), batch_size=4, dtype="float32", device="cpu")
    turns = [ours.apply_chat_template([{"role": "user", "content": p}]) for p in PROMPTS]
    assert turns == [theirs.apply_chat_template([{"role": "user", "content": p}]) for p in PROMPTS]
    for prompts, until, limit in ((PROMPTS[:1], [], 260), (PROMPTS, [". Units", "\n\n"], 60), (turns, ["\nStep 2"], 120)):
        settings = {"do_sample": False, "temperature": 0.0, "max_gen_toks": limit, "until": until}
        made = ours.generate_until(instances(prompts[:3], settings), disable_tqdm=True)
        assert made == theirs.generate_until(instances(prompts[:3], settings), disable_tqdm=True)
        assert all(made)
    assert ours.get_model_info()["takeover"]["realized_rate"] == (role == "guide")


@pytest.mark.parametrize("role", ["base", "guide"])
def test_log_likelihoods_equal_those_of_hf(role):
    given = {"batch_size": 3, "max_length": 256}
    ours = GuidedTakeover(policy=role, **{role: str(DEMO[role])}, **given)  # named alone, as `hf` names it
    theirs = HFLM(pretrained=str(DEMO[role]), dtype="float32", device="cpu", **given)
    pairs = [(PROMPTS[0], "\nStep 1: the ant adds 5.")]
    pairs += [("", "Step 1"), ("Step", " 1"), ("x " * 150, "y " * 50)]
    requests = [Instance("loglikelihood", {}, pair, 0, metadata=("t", i, 1)) for i, pair in enumerate(pairs)]
    found = (one.loglikelihood(requests, disable_tqdm=True) for one in (ours, theirs))
    for mine, other in zip(*found, strict=True):
        assert mine[0] == pytest.approx(other[0], rel=1e-4, abs=1e-3)
        assert mine[1] == other[1]
    long = (PROMPTS[0], "ab " * 200, "")
    texts = [Instance("loglikelihood_rolling", {}, (text,), 0, metadata=("t", 0, 1)) for text in long]
    mine, other = (one.loglikelihood_rolling(texts, disable_tqdm=True) for one in (ours, theirs))
    assert mine == pytest.approx(other, rel=1e-4)


def test_log_likelihood_under_takeover_counts_each_token_under_its_writer(random_pair):
    """Against plain passes of the two models, with the decisions of the gate worked out in plain Python."""
    lm = GuidedTakeover(base=str(random_pair["base"]), guide=str(random_pair["guide"]), tau=7.6, kappa=0.99, window=4)
    context, continuation = PROMPTS[0], "\nStep 1: the ant adds 5. We have 58."
    asked = [Instance("loglikelihood", {}, (context, continuation), 0)]
    ((value, greedy),) = lm.loglikelihood(asked, disable_tqdm=True)
    prompt = lm.tok_encode(context)
    ids = lm.tok_encode(context + continuation)[len(prompt) :]
    host, donor = (reference.all_logits(member.model, prompt, ids, 512) for member in (lm.pair.base, lm.pair.guide))
    fired = reference.fires_along([reference.score_of("ce", *both) for both in zip(host, donor, strict=True)], 7.6, 0.99, 4)
    writers = (d if fire else h for h, d, fire in zip(host, donor, fired, strict=True))
    total = sum(float(log_softmax(logits)[token]) for logits, token in zip(writers, ids, strict=True))
    assert value == pytest.approx(total, rel=1e-5)
    assert 0 < sum(fired) < len(fired)
    assert greedy is False


def test_a_policy_that_draws_again_has_no_log_likelihoods():
    lm = GuidedTakeover(policy="lossy", residual=True)
    with pytest.raises(ArgumentError, match=r"policy=lossy with .*residual=True has no probability of a given text"):
        lm.loglikelihood([Instance("loglikelihood", {}, ("a", " b"), 0)], disable_tqdm=True)


def test_what_the_context_has_no_room_for_is_cut_with_one_notice(caplog):
    """Prompts from the left, as `hf` cuts them, and the number of new tokens."""
    lm = GuidedTakeover(max_length=64, policy="guide", batch_size=4)
    theirs = HFLM(pretrained=str(DEMO["guide"]), batch_size=1, dtype="float32", device="cpu", max_length=64)
    long = [PROMPTS[0] * 4, PROMPTS[1] * 3]
    settings = {"do_sample": False, "max_gen_toks": 20, "until": []}
    made = lm.generate_until(instances([*long, "Step", ""], settings, repeats=2), disable_tqdm=True)[::2]
    assert made[:2] == theirs.generate_until(instances(long, settings), disable_tqdm=True)
    lm = GuidedTakeover(max_length=80, policy="random", rate=0.5, batch_size=4)
    room = 80 - len(lm.tok_encode(PROMPTS[0]))
    assert 0 < room < 60
    lm.generate_until(instances(PROMPTS[:1] * 3, SAMPLED | {"max_gen_toks": 60}), disable_tqdm=True)
    assert lm.get_model_info()["takeover"]["tokens"] == 3 * room
    assert [record.message for record in caplog.records if record.name == "lm_eval_takeover.tasks.instances"] == [
        "2 of 4 prompts are longer than the context of 64 tokens; truncated from the left",
        "max_gen_toks is shortened for 1 of 1 prompts, to fit the context of 80 tokens",
    ]


def test_the_end_tokens_of_both_models_end_a_guided_text(random_pair, tmp_path):
    """A base and a guide with different end tokens: whoever writes ends at either; a model that is named alone at its own."""
    settings = {"do_sample": True, "temperature": 2.0, "max_gen_toks": 120, "until": []}
    tokenizer = GuidedTakeover(policy="base").tokenizer
    base = save_random_model(tmp_path / "base", vocab_size=512, seed=1, layers=1, eos_token_id=5)
    guide = save_random_model(tmp_path / "guide", vocab_size=512, seed=2, layers=1, eos_token_id=[6, 7])
    own, both = tokenizer.eos_token_id, {"base": str(base), "guide": str(guide)}
    for arguments, ends in (
        ({"policy": "random", "rate": 0.5, **both}, {5, 6, 7, own}),
        ({"policy": "base", **both}, {5, 6, 7, own}),
        ({"policy": "base", "base": str(base)}, {5, own}),
        ({"policy": "guide", "guide": str(guide)}, {6, 7, own}),
    ):
        lm = GuidedTakeover(batch_size=32, **arguments)
        requests = lm.requests(instances(PROMPTS[:3], settings, repeats=16))
        made = dict(generate(lm.pair, lm.policy, requests, batch_size=48)).values()
        assert {g.tokens[-1] for g in made if len(g.tokens) < 120} == ends
        assert not any(ends & set(g.tokens[:-1]) for g in made)


def test_tokens_that_only_one_model_knows_are_refused(random_pair, tmp_path):
    guide = save_random_model(tmp_path / "guide", vocab_size=544, seed=2)
    lm = GuidedTakeover(base=str(random_pair["base"]), guide=str(guide), tau=1.0)
    lm.tokenizer.add_tokens([f"<new{i}>" for i in range(544 - len(lm.tokenizer))])
    for call, kind, args in (
        (lm.generate_until, "generate_until", ("a <new138>", dict(SAMPLED))),
        (lm.loglikelihood, "loglikelihood", ("a", " <new138>")),
    ):
        with pytest.raises(VocabularyError, match=r"task t, doc 3 holds token 54. .* lies outside the 512 tokens"):
            call([Instance(kind, {}, args, 0, metadata=("t", 3, 1))], disable_tqdm=True)
    with pytest.raises(VocabularyError, match=r"calibration prompt 1 holds token 54. .* lies outside the 512 tokens"):
        Setup(backend=lm.engine, prompts=None).make_requests(["a <new138>"], [0])


def test_a_special_token_with_two_names_is_a_warning(tmp_path, caplog):
    guide = save_random_model(tmp_path / "renamed", vocab_size=512, seed=1)
    for path in guide.glob("tokenizer*.json"):
        path.write_text(path.read_text().replace("<|im_start|>", "<|User|>"))
    lm = GuidedTakeover(base=str(DEMO["base"]), guide=str(guide), tau=1.0)
    assert len(lm.pair.vocabulary.renamed) == 1
    assert "base '<|im_start|>', guide '<|User|>'" in caplog.text


def test_command_line_values_are_typed():
    made = ModelArguments.parse({"tau": "1.5", "kappa": 2, "window": "7", "trust_remote_code": "true", "batch_size": "auto:4"})
    assert (made.tau, made.kappa, made.window, made.trust_remote_code, made.rows) == (1.5, 2.0, 7, True, 64)
    made = ModelArguments.parse({"base": 7, "seed": 2**60 + 1})
    assert (made.base, made.seed) == ("7", 2**60 + 1)
    assert [ModelArguments.parse({"think_end_token": end}).think_end_token for end in ("</thought>", "7")] == ["</thought>", 7]


def test_model_arguments_win_over_what_lm_eval_passes_beside_them():
    made = GuidedTakeover.create_from_arg_obj({"batch_size": 7, "policy": "base"}, {"batch_size": 1, "device": None})
    assert made.batch_size == 7
    assert GuidedTakeover.create_from_arg_string("policy=base", {"batch_size": "auto:3"}).batch_size == 64


@pytest.mark.parametrize(("arguments", "text"), [
    ({"parallelize": True}, "argument 'parallelize'; device_map=auto spreads the layers over all devices"),
    ({"pretrained": "x"}, "argument 'pretrained'; base=… and guide=… name the two models"),
    ({"window": "ten"}, "window='ten' is not a whole number"),
    ({"tau": "high"}, "tau='high' is not a number"),
    ({"tau": True}, "tau=True is not a number"),
    ({"trust_remote_code": "maybe"}, "trust_remote_code='maybe' is not true or false"),
    ({"policy": None}, "policy=None has no value"),
    ({"block_size": 0}, 'block_size=0 is not a whole number of at least 1 or "auto"'),
    ({"seed": 2**63}, "seed=9223372036854775808 is not a whole number"),
    ({"batch_size": 8.5}, "batch_size=8.5 is not a whole number"),
    ({"window": 0}, "window=0 is not a whole number of at least 1"),
    ({"run_dir": "a\udc80\0"}, r"run_dir='a\udc80\x00' holds a character that UTF-8"),
    ({"spike_ratio": float("nan")}, "spike_ratio=nan is not a number"),
    ({"base": ""}, "base= is empty"),
    ({"backend": "jax"}, 'backend=\'jax\' is not "hf" or "vllm"'),
    ({"kappa": 2.0}, "kappa=2.0 sets the gate by hand and needs tau"),
    ({"tau": 1.0, "spike_ratio": 0.03}, "tau=1.0 sets the gate by hand, so spike_ratio=0.03 would be ignored"),
    ({"target_rate": 0.05, "spike_ratio": 0.03}, "give target_rate=0.05 or spike_ratio=0.03, not both"),
    ({"policy": "guided"}, "policy='guided' is not known; did you mean 'guide'?"),
    ({"direction": "backward"}, "direction='backward' is not known; known: forward, reverse"),
    ({"score": "entropy"}, "policy=entropy goes with score=entropy"),
    ({"policy": "random"}, "policy=random needs rate"),
    ({"policy": "early"}, "policy=early needs either rate"),
    ({"score_top_p": 0.9}, "score_top_p=0.9 is read by score=js, not ce"),
    ({"score_top_p": 0.9, "score": "js"}, "score_top_p=0.9 needs target_rate=…"),
    ({"chance": 2, "tau": 1.0}, "chance=2.0 is outside 0..1"),
    ({"score": "top1", "spike_ratio": 0.1}, "score=top1 is 0 or 1 and has no threshold; give chance="),
    ({"score": "log_ratio", "tau": -1.0, "kappa": 2.0}, "kappa=2.0 needs scores above 0, not score=log_ratio"),
    ({"policy": "lossy", "leniency": -1}, "leniency=-1.0 is not a number of at least 0"),
    ({"policy": "segment", "length": "paragraph"}, "length=paragraph is neither 'sentence' nor a whole number"),
    ({"policy": "segment", "leniency": 1}, "unknown model argument 'leniency'"),
    ({"calibration": "demo:2"}, "only published calibrations have columns"),
    ({"direction": "reverse"}, "with direction=reverse; make one with `lm-eval-takeover calibrate"),
    ({"direction": "reverse", "calibration": "demo"}, "was made for direction=forward, not reverse"),
    ({"calibration": "qwen3-0.6b-base+qwen3-8b"}, "was made for base=Qwen/Qwen3-0.6B-Base"),
    ({"base": str(DEMO["base"])}, "guide is missing: policy=disagreement asks it"),
    ({"dtype": "float12"}, "dtype='float12' is not known; expected auto, float32"),
    ({"device": "tpu9"}, "device='tpu9': torch"),
], ids=str)  # fmt: skip
def test_bad_arguments_are_one_line_that_names_argument_value_and_way_out(arguments, text):
    with one_line(TakeoverError, text):
        GuidedTakeover(**arguments)


def test_a_calibration_of_another_pair_needs_permission(random_pair, caplog):
    pair = {role: str(folder) for role, folder in random_pair.items()}
    with pytest.raises(CalibrationError, match="no packaged calibration for base=base and guide=guide"):
        GuidedTakeover(**pair)
    with pytest.raises(CalibrationError, match=r"was made for base=demo-base@.* pass allow_calibration_mismatch=True"):
        GuidedTakeover(**pair, calibration="demo")
    lm = GuidedTakeover(**pair, calibration="demo", allow_calibration_mismatch=True)
    assert lm.policy.gate.tau > 0
    assert "used anyway" in caplog.text


def test_a_pickle_only_checkpoint_is_refused_with_the_way_to_convert_it(random_pair, tmp_path, monkeypatch):
    """Converted as the error says, it loads."""
    from safetensors.torch import load_file

    folder = shutil.copytree(random_pair["base"], tmp_path / "pickled")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    arguments = {"base": str(folder), "guide": str(random_pair["guide"]), "tau": 1.5}
    with pytest.raises(ArgumentError, match="weights in a pickle are not read, since it can run any code") as refused:
        _ = GuidedTakeover(**arguments).engine
    (command,) = re.findall(r'`python -c "(.*)"`', str(refused.value))
    monkeypatch.chdir(tmp_path)
    exec(command)
    made = GuidedTakeover(**arguments | {"base": str(tmp_path / "converted")})
    assert made.pair.base.model.dtype == torch.float32


def test_a_context_beyond_the_models_own_is_said(caplog):
    GuidedTakeover(tau=1.0, max_length=10**6)
    assert "max_length=1000000 is more than the" in caplog.text


def test_every_argument_says_once_what_it_is_for():
    """Its field alone says it: keys of samples (tests/runs/test_identity.py) and all tables of arguments follow."""
    for name, kind in KINDS.items():
        assert isinstance(kind, ArgumentKind) and (name in HARMLESS) == (kind.key is None and name != "model"), name
        assert not kind.own or name in ("base", "guide") or name.removeprefix("guide_") in TWINS, name
    assert all(KINDS[name] == KINDS[twin] for name, twin in TWINS.items())


@pytest.mark.parametrize("name", VLLM_INSTEAD)
def test_vllm_names_what_it_has_instead(name):
    refuse_others(ModelArguments())
    with pytest.raises(ArgumentError, match=f"{name}=x is read by backend=hf; backend=vllm has {VLLM_INSTEAD[name]}"):
        refuse_others(ModelArguments(**{name: "x"}))

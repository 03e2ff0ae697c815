"""The LM class: repeats, settings, truncation, log-likelihoods, chat templates, and agreement with lm-eval's own `hf`."""

import json
import re
import shutil

import pytest
import torch
from helpers.one_line import one_line
from helpers.pairs import save_random_model
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from lm_eval_takeover.commands.calibrate.rollouts import Setup
from lm_eval_takeover.decoding.lockstep import generate
from lm_eval_takeover.demo import DEMO, calibration_prompts
from lm_eval_takeover.errors import ArgumentError, CalibrationError, VocabularyError
from lm_eval_takeover.model import GuidedTakeover

PROMPTS = calibration_prompts()[:6]
SAMPLED = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 40, "until": []}


def instances(prompts, settings, repeats=1, task="some_task", kind="generate_until"):
    made = [Instance(kind, {}, (prompt, dict(settings)), 0, metadata=(task, i, repeats)) for i, prompt in enumerate(prompts)]
    return [instance for instance in made for _ in range(repeats)]


@pytest.fixture(scope="module")
def demo_lm():
    return GuidedTakeover(batch_size=16)


def test_the_demo_pair_and_its_calibration_are_the_defaults(demo_lm):
    info = demo_lm.get_model_info()["takeover"]
    assert [info[role]["id"] for role in ("base", "guide")] == ["demo-base", "demo-guide"]
    assert info["dtypes"] == {"base": "torch.float32", "guide": "torch.float32"}
    gate = [info[name] for name in ("policy", "score", "spike_ratio", "kappa_rule", "calibration")]
    assert gate == ["disagreement", "ce", 0.03, "threshold_to_mean", "demo"]
    assert min(info["tau"], info["kappa"]) > 0


def test_text_depends_on_prompt_sample_and_seed_only(demo_lm):
    together = demo_lm.generate_until(instances(PROMPTS, SAMPLED, repeats=3), disable_tqdm=True)
    backwards = demo_lm.generate_until(instances(PROMPTS[::-1], SAMPLED, repeats=3), disable_tqdm=True)
    by_prompt = [together[i : i + 3] for i in range(0, len(together), 3)]
    assert by_prompt == [backwards[i : i + 3] for i in range(0, len(backwards), 3)][::-1]
    alone = GuidedTakeover(batch_size=1).generate_until(instances(PROMPTS[2:3], SAMPLED, repeats=3), disable_tqdm=True)
    assert alone == by_prompt[2]
    assert len(set(alone)) > 1  # repeats differ
    other = GuidedTakeover(batch_size=16, seed=1)
    assert other.generate_until(instances(PROMPTS[2:3], SAMPLED, repeats=3), disable_tqdm=True) != alone


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
    for prompts, until, limit in (
        (PROMPTS[:2], [], 260),
        (PROMPTS, [". Units", "\n\n"], 60),
        (turns, ["\nStep 2"], 120),
        (turns, ["<|im_end|>"], 30),
    ):
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
    long = (PROMPTS[0], "ab " * 200)
    texts = [Instance("loglikelihood_rolling", {}, (text,), 0, metadata=("t", 0, 1)) for text in long]
    mine, other = (one.loglikelihood_rolling(texts, disable_tqdm=True) for one in (ours, theirs))
    assert mine == pytest.approx(other, rel=1e-4)


def test_log_likelihood_under_takeover_counts_each_token_under_its_writer(random_pair):
    """Against the two models asked one by one, with the decisions of the gate worked out in plain Python."""
    lm = GuidedTakeover(base=str(random_pair["base"]), guide=str(random_pair["guide"]), tau=7.6, kappa=0.99, window=4)
    context, continuation = PROMPTS[0], "\nStep 1: the ant adds 5. We have 58."
    asked = [Instance("loglikelihood", {}, (context, continuation), 0)]
    ((value, greedy),) = lm.loglikelihood(asked, disable_tqdm=True)
    prompt = lm.tok_encode(context)
    ids = lm.tok_encode(context + continuation)[len(prompt) :]
    from helpers import reference

    scores, fired, total = [], [], 0.0
    for t, token in enumerate(ids):
        host, donor = (reference.next_logits(m.model, [*prompt, *ids[:t]], 512) for m in (lm.pair.base, lm.pair.guide))
        score, recent = reference.score_of("ce", host, donor), scores[-4:]
        fire = score > 7.6 and (t == 0 or score > 0.99 * sum(recent) / len(recent))
        total += float(reference.log_softmax(donor if fire else host)[token])
        scores.append(score)
        fired.append(fire)
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


def test_enable_thinking_reaches_the_guides_template():
    messages = [{"role": "user", "content": "2 + 2?"}]
    texts = [GuidedTakeover(enable_thinking=value).apply_chat_template(messages) for value in (None, True, False)]
    assert texts[0] == texts[1]
    assert texts[2] == texts[0] + "<think>\n\n</think>\n\n"


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


def test_two_dtypes_work_together():
    lm = GuidedTakeover(guide_dtype="bfloat16", spike_ratio=0.045, batch_size=8)
    assert {str(m.model.dtype) for m in lm.pair.members} == {"torch.float32", "torch.bfloat16"}
    texts = lm.generate_until(instances(PROMPTS, SAMPLED | {"max_gen_toks": 250}), disable_tqdm=True)
    assert all("boxed" in text for text in texts)
    assert GuidedTakeover(dtype=torch.float32, policy="base").pair.base.model.dtype == torch.float32


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


def test_a_missing_chat_template_is_one_line():
    lm = GuidedTakeover(policy="base")
    lm.tokenizer.chat_template = None
    with pytest.raises(ArgumentError, match=r"--apply_chat_template: the tokenizer of .* has no chat template"):
        lm.apply_chat_template([{"role": "user", "content": "x"}])


def test_model_arguments_win_over_what_lm_eval_passes_beside_them():
    made = GuidedTakeover.create_from_arg_obj({"batch_size": 7, "policy": "base"}, {"batch_size": 1, "device": None})
    assert made.batch_size == 7
    assert GuidedTakeover.create_from_arg_string("policy=base", {"batch_size": "auto:3"}).batch_size == 64


BAD = [
    ({"policy": "guided"}, ArgumentError, "policy='guided' is not known; did you mean 'guide'?"),
    ({"direction": "backward"}, ArgumentError, "direction='backward' is not known; known: forward, reverse"),
    ({"score": "kl"}, ArgumentError, "score='kl' is not known; did you mean 'rkl'?"),
    ({"score": "entropy"}, ArgumentError, "policy=entropy goes with score=entropy"),
    ({"policy": "random"}, ArgumentError, "policy=random needs rate"),
    ({"policy": "random", "rate": 1.5}, ArgumentError, "rate=1.5 is outside 0..1"),
    ({"policy": "early"}, ArgumentError, "policy=early needs either rate"),
    ({"policy": "early", "early_tokens": -1}, ArgumentError, "early_tokens=-1 is negative"),
    ({"score_top_p": 0.9}, ArgumentError, "score_top_p=0.9 is read by score=js, not ce"),
    ({"score_top_p": 0.9, "score": "js"}, ArgumentError, "score_top_p=0.9 needs target_rate=…"),
    ({"rate": 0.1}, ArgumentError, "rate=0.1 is read by policy=random or early, not disagreement"),
    ({"policy": "random", "rate": 0.1, "chance": 0.5}, ArgumentError, "is read by policy=disagreement, entropy or segment"),
    ({"chance": 2, "tau": 1.0}, ArgumentError, "chance=2.0 is outside 0..1"),
    ({"score": "top1", "spike_ratio": 0.1}, ArgumentError, "score=top1 is 0 or 1 and has no threshold; give chance="),
    ({"score": "log_ratio", "tau": -1.0, "kappa": 2.0}, ArgumentError, "kappa=2.0 needs scores above 0, not score=log_ratio"),
    ({"policy": "lossy", "leniency": -1}, ArgumentError, "leniency=-1.0 is not a number of at least 0"),
    ({"policy": "ensemble", "weight": 1.5}, ArgumentError, "weight=1.5 is outside 0..1, the donor's share of the mix"),
    ({"policy": "segment", "length": "paragraph"}, ArgumentError, "length=paragraph is neither 'sentence' nor a whole number"),
    ({"policy": "segment", "length": 0}, ArgumentError, "length=0 is neither 'sentence' nor a whole number of at least 1"),
    ({"policy": "segment", "leniency": 1}, ArgumentError, "unknown model argument 'leniency'"),
    ({"tau": -1.0}, ArgumentError, "tau=-1.0 is not a number of at least 0"),
    ({"kappa_rule": "tail"}, ArgumentError, "kappa_rule='tail' is not known"),
    ({"calibration": "demo:2"}, ArgumentError, "only published calibrations have columns"),
    ({"direction": "reverse"}, CalibrationError, "with direction=reverse; make one with `lm-eval-takeover calibrate"),
    ({"direction": "reverse", "calibration": "demo"}, CalibrationError, "was made for direction=forward, not reverse"),
    ({"calibration": "qwen3-0.6b-base+qwen3-8b"}, CalibrationError, "was made for base=Qwen/Qwen3-0.6B-Base"),
    ({"base": str(DEMO["base"])}, ArgumentError, "guide is missing: policy=disagreement asks it"),
    ({"dtype": "float12"}, ArgumentError, "dtype='float12' is not known; expected auto, float32"),
    ({"device": "tpu9"}, ArgumentError, "device='tpu9': torch"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "kind", "text"), BAD, ids=[str(list(b[0].items())[-1]) for b in BAD])
def test_bad_arguments_are_one_line_errors(arguments, kind, text):
    with one_line(kind, text):
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


def test_renamed_special_tokens_are_a_warning(tmp_path, caplog):
    folder = save_random_model(tmp_path / "renamed", vocab_size=512, seed=1)
    for path in folder.glob("tokenizer*.json"):
        path.write_text(path.read_text().replace("<|im_start|>", "<|User|>"))
    lm = GuidedTakeover(base=str(DEMO["base"]), guide=str(folder), tau=1.0)
    assert len(lm.pair.vocabulary.renamed) == 1
    assert "base '<|im_start|>', guide '<|User|>'" in caplog.text


def test_a_pickle_only_checkpoint_is_refused_with_the_way_to_convert_it(random_pair, forked, tmp_path):
    """Converted as the error says, it loads."""
    from safetensors.torch import load_file

    folder = shutil.copytree(random_pair["base"], tmp_path / "pickled")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    arguments = {"base": str(folder), "guide": str(random_pair["guide"]), "tau": 1.5}
    with pytest.raises(ArgumentError, match="weights in a pickle are not read, since it can run any code") as refused:
        _ = GuidedTakeover(**arguments).engine
    (command,) = re.findall(r'`python -c "(.*)"`', str(refused.value))
    (tmp_path / "convert.py").write_text(command)
    assert forked.run(tmp_path / "convert.py", cwd=tmp_path).returncode == 0
    made = GuidedTakeover(**arguments | {"base": str(tmp_path / "converted")})
    assert made.pair.base.model.dtype == torch.float32


def test_a_context_beyond_the_models_own_is_said(caplog):
    GuidedTakeover(tau=1.0, max_length=10**6)
    assert "max_length=1000000 is more than the" in caplog.text
    caplog.clear()
    GuidedTakeover(tau=1.0, max_length=100)
    assert "max_length" not in caplog.text

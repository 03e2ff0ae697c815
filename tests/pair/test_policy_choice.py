"""From model arguments to a gate: published thresholds are chosen by column, never guessed, and a calibration fits its run.

Prompt form, decoding and dtypes of both sides are compared before a token is written.
"""

import re
from dataclasses import replace

import pytest
from helpers.one_line import one_line
from lm_eval.api.instance import Instance

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.calibration.files import ModelId, find_calibration
from lm_eval_takeover.demo import calibration_prompts
from lm_eval_takeover.errors import ArgumentError, CalibrationError
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.pair.pair import load_pair
from lm_eval_takeover.pair.policy_choice import OF_METHODS, check_arguments, load_policy, refuse_unread

PROMPT = calibration_prompts()[0]
CHAT = f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
SAMPLED = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 2, "until": []}
GREEDY = {"do_sample": False, "temperature": 0.0, "top_p": 1.0}


def ask(lm, *asked, task="a"):
    """One request for each `(prompt, changed settings)`."""
    each = [((prompt, SAMPLED | settings), number) for number, (prompt, settings) in enumerate(asked)]
    requests = [Instance("generate_until", {}, words, 0, metadata=(task, number, 1)) for words, number in each]
    return lm.generate_until(requests, disable_tqdm=True)


@pytest.fixture(scope="module")
def loaded():
    return GuidedTakeover()


@pytest.fixture
def lm(loaded, monkeypatch):
    """The demo pair with its calibration, which has said nothing yet."""
    fit = replace(loaded.gate_origin.fit, _said={})
    monkeypatch.setattr(loaded, "gate_origin", replace(loaded.gate_origin, fit=fit))
    loaded.samples.clear()
    return loaded


def calibrated(lm, prompts=None, decoding=None, fit=None, **changes):
    """The same model with a calibration of other circumstances."""
    origin, demo = lm.gate_origin, find_calibration("demo")[0]
    changes |= {"prompts": demo.prompts | (prompts or {}), "decoding": demo.decoding | (decoding or {})}
    held = replace(demo, name="mine", **changes)
    lm.gate_origin = replace(origin, fit=replace(origin.fit, **{"calibration": held} | (fit or {})))
    return lm


@pytest.mark.parametrize(
    ("prompt", "settings", "measured", "asks", "option"),
    [
        (CHAT, {}, "raw prompts", "prompts in the chat template", "--apply_chat_template --out"),
        (PROMPT, {"temperature": 1.0}, "temperature=0.6", "temperature=1", "--temperature 1 --out"),
        (PROMPT, {"top_p": 1.0}, "top_p=0.95", "top_p=1", "--top_p 1 --out"),
        (PROMPT, {"top_k": 20}, "top_k=0", "top_k=20", "--top_k 20 --out"),
        (PROMPT, {"min_p": 0.1}, "min_p=0", "min_p=0.1", "--min_p 0.1 --out"),
        (PROMPT, GREEDY, "temperature=0.6", "temperature=0", "--temperature 0 --out"),
        (CHAT, {"top_k": 5}, "raw prompts and top_k=0", "prompts in the chat template and top_k=5", "--top_k 5 --out"),
    ],
)  # fmt: skip
def test_another_form_or_decoding_is_an_error_that_names_both_sides(lm, prompt, settings, measured, asks, option):
    """Of the second of two requests, before a token of the first is written. That the template was applied shows in the text:
    lm-eval's cache of requests asks the model for none."""
    said = f"calibration 'demo' was measured with {measured}, and task a asks with {asks}; make one"
    with one_line(CalibrationError, said, option):
        ask(lm, (PROMPT, {}), (prompt, settings))
    assert lm.get_model_info()["takeover"]["tokens"] == 0


@pytest.mark.parametrize(
    ("changes", "prompt", "settings", "said"),
    [
        ({}, PROMPT, {}, None),
        ({"decoding": {"temperature": 0.0}}, PROMPT, GREEDY, None),  # what it does not read does not count
        ({"fit": {"allowed": True}}, PROMPT, {"temperature": 1.0}, "task a asks with temperature=1; used anyway"),
        (
            {"fit": {"calibration": find_calibration("qwen3-0.6b-base+qwen3-8b")[0]}}, CHAT, {"top_k": 7},
            "is read off a published table, which does not say its form of prompts, decoding",
        ),
        (
            {"dtypes": {"base": "torch.float32", "guide": "torch.bfloat16"}}, PROMPT, {},
            "was measured with the guide in torch.bfloat16, and this run has it in torch.float32",
        ),
        (
            {"quantization": {"base": {"load_in_4bit": True}}}, PROMPT, {},
            "with the base in torch.float32 with load_in_4bit=True, and this run has it in torch.float32;",
        ),
    ],
)  # fmt: skip
def test_what_is_no_error_is_a_notice_said_once(lm, caplog, changes, prompt, settings, said):
    calibrated(lm, **changes)
    for _ in range(2):
        ask(lm, (prompt, settings))
    assert [record.getMessage().count(said or "") for record in caplog.records] == [1] * (said is not None)


def test_thinking_modes_are_compared_by_what_the_template_makes_of_them(lm):
    chat = {"chat_template": True, "enable_thinking": True}
    ask(calibrated(lm, chat), (CHAT, {}))  # the template's own mode is this one
    ask(calibrated(lm, chat | {"enable_thinking": None}, fit={"enable_thinking": True}), (CHAT, {}))
    with pytest.raises(CalibrationError, match=r"with enable_thinking=True, and task a asks with enable_thinking=False; .*"
                       r"--apply_chat_template --enable_thinking False --out"):  # fmt: skip
        ask(calibrated(lm, chat, fit={"enable_thinking": False}), (CHAT + "<think>\n\n</think>\n\n", {}))
    with pytest.raises(CalibrationError, match="with prompts in the chat template, and task a asks with raw prompts"):
        ask(calibrated(lm, chat), (PROMPT, {}))


def test_few_shot_turns_are_chat_prompts_too(lm):
    turns = [("user", "1 + 1?"), ("assistant", "2"), ("user", "2 + 2?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    assert lm.pair.is_chat_prompt(lm.apply_chat_template(messages))
    begun = [*messages, {"role": "assistant", "content": "It is"}]
    assert lm.pair.is_chat_prompt(lm.apply_chat_template(begun, add_generation_prompt=False))


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ messages[0].content }}{% if enable_thinking is false %}<think></think>{% endif %}", False),
        ("Question: {{ messages[0].content }}", True),
    ],
)
def test_a_template_that_renders_the_content_alone_fits_raw_prompts_and_its_own(template, told):
    lm = GuidedTakeover()
    lm.tokenizer.chat_template = template
    rendered = lm.apply_chat_template([{"role": "user", "content": PROMPT}])
    for chat, prompt in ((True, PROMPT), (False, rendered)):
        ask(calibrated(lm, {"chat_template": chat, "enable_thinking": None}), (rendered if chat else PROMPT, {}))
        if told:
            with pytest.raises(CalibrationError, match="prompts in the chat template"):
                ask(lm, (prompt, {}))


def test_log_likelihoods_compare_the_form_of_their_prompts_alone(lm):
    request = Instance("loglikelihood", {}, (CHAT, "Step"), 0, metadata=("b", 0, 1))
    with pytest.raises(CalibrationError, match="with raw prompts, and task b asks with prompts in the chat template"):
        lm.loglikelihood([request], disable_tqdm=True)
    lm.loglikelihood([Instance("loglikelihood", {}, (PROMPT, "Step"), 0, metadata=("b", 0, 1))], disable_tqdm=True)


def test_no_weights_are_loaded_for_a_run_that_does_not_fit():
    lm = GuidedTakeover()
    for prompt, settings, error in (
        (PROMPT, {"temperature": 1.0}, CalibrationError),
        (CHAT, {}, CalibrationError),
        (PROMPT, {"temperature": "warm"}, ArgumentError),
        (PROMPT, {"temprature": 1.0}, ArgumentError),
    ):
        with pytest.raises(error):
            ask(lm, (prompt, settings))
    assert not any("model" in vars(member) for member in lm.pair.members)
    ask(lm, (PROMPT, {}))
    assert all("model" in vars(member) for member in lm.pair.members)


def test_a_run_on_a_problem_of_the_calibration_is_refused(caplog):
    """Whatever the task asks for, calls its field and words its prompt; examples of a few-shot prompt are no problems of it."""
    problem = PROMPT.removeprefix("Problem: ").removesuffix("\nSolution:")
    other = problem.replace("the ant takes", "the ant adds")

    def request(kind, document, *given):
        return Instance(kind, document, given, 0, metadata=("mine", 3, 1))

    own = {"question": f"<b>{problem}</b>", "answer": "7"}
    refused = request("generate_until", own, f"Q: {problem}\nA:", SAMPLED)
    for each in (refused, request("loglikelihood", own, problem, " 7"), request("loglikelihood_rolling", own, problem)):
        with pytest.raises(CalibrationError, match="'demo' was measured on the problem of task mine, doc 3; give one"):
            getattr(GuidedTakeover(), each.request_type)([each], disable_tqdm=True)
    shown = request("generate_until", {"question": other}, f"Q: {problem}\nA: 7\n\nQ: {other}\nA:", SAMPLED)
    GuidedTakeover().generate_until([shown], disable_tqdm=True)
    GuidedTakeover(allow_calibration_mismatch=True).generate_until([refused], disable_tqdm=True)
    assert "was measured on the problem of task mine, doc 3; used anyway" in caplog.text


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
    "random": "rate direction",
    "early": "rate early_tokens direction",
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
        ({"policy": "random", "target_rate": 0.05}, ", not random; leave it out"),
        ({"policy": "lossy", "leniency": 0.5, "target_rate": 0.05}, "give target_rate=0.05 or leniency=0.5, not both"),
        ({"policy": "lossy", "leniency": 0.5, "calibration": "demo"}, "calibration='demo' is read with target_rate=…"),
    ],
)
def test_what_nothing_reads_is_refused(arguments, text):
    with pytest.raises(ArgumentError, match=re.escape(text)):
        check_arguments(arguments)

"""Checkpoints as they load, and those that must not."""

import os
import re
import shutil
import sys

import pytest
import torch
from helpers.one_line import one_line
from helpers.pairs import GREEDY, edit, save_adapter, save_random_model
from helpers.processes import run_code
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding import engine
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, TakeoverError
from lm_eval_takeover.method.policies import BaseAlone
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair import pair as pairs
from lm_eval_takeover.pair.ids import find_revision, identify, locate
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair, load_pair

BOTH = {"base": str(DEMO["base"]), "guide": str(DEMO["guide"])}


@pytest.fixture
def given(monkeypatch):
    """Loads weights as if they fitted: by role, what `from_pretrained` was given beside the name."""
    found, plain = {}, AutoModelForCausalLM.from_pretrained

    def load(path, **options):
        found["guide" if path == BOTH["guide"] else "base"] = options
        return plain(path, dtype=options["dtype"], output_loading_info=True)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load)

    def read(**arguments):
        for member in load_pair(ModelArguments.parse(BOTH | arguments)).members:
            _ = member.model
        return found["base"], found["guide"]

    return read


@pytest.mark.parametrize("name", ["device_map", "attn_implementation"])
def test_what_counts_for_both_models_reaches_both_unless_the_guide_has_its_own(given, name):
    first, other = ("auto", "balanced") if name == "device_map" else ("eager", "sdpa")
    assert [options.get(name) for options in given()] == [None, None]
    assert [options.get(name) for options in given(**{name: first})] == [first, first]
    assert [options.get(name) for options in given(**{name: first, f"guide_{name}": other})] == [first, other]
    assert [options.get(name) for options in given(**{f"guide_{name}": other})] == [None, other]
    assert [options["revision"] for options in given(revision="one")] == ["one", None]  # each repository has its own
    assert [options["revision"] for options in given(guide_revision="two")] == [None, "two"]


def test_bitsandbytes_is_asked_for_as_lm_eval_has_it(given):
    base, guide = given(load_in_4bit=True, guide_load_in_4bit=False, guide_load_in_8bit=True)
    assert base["quantization_config"].load_in_4bit
    assert guide["quantization_config"].load_in_8bit and not guide["quantization_config"].load_in_4bit
    assert base["device_map"] == {"": "cpu"}  # quantized weights cannot be moved afterwards
    asked = '{"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}'
    _, guide = given(guide_quantization_config=asked)
    assert guide["quantization_config"].bnb_4bit_quant_type == "nf4"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"load_in_4bit": True, "load_in_8bit": True}, "load_in_4bit and load_in_8bit of the base exclude each other"),
        ({"guide_quantization_config": '{"quant_method": "no such"}'}, "the quantization cannot be set up"),
        ({"quantization_config": "{quant"}, "quantization_config='{quant' is not an object"),
        ({"base": "acme/base@one", "revision": "two"}, "base='acme/base@one' contradicts revision=two"),
        ({"guide_peft": "no/such"}, "guide_peft='no/such' needs the package peft: pip install peft"),
        ({"guide_peft": "/no/such"}, "guide_peft='/no/such' cannot be loaded: there is no such folder"),
    ],
)
def test_errors_are_one_line(given, monkeypatch, arguments, text):
    monkeypatch.setitem(sys.modules, "peft", None)
    with one_line(ArgumentError, text):
        given(**arguments)


def test_a_subfolder_is_where_configuration_tokenizer_and_weights_are_read(tmp_path):
    shutil.copytree(DEMO["base"], tmp_path / "repository" / "inner")
    base = str(tmp_path / "repository")
    member = load_pair(ModelArguments(base=base, subfolder="inner", policy="base")).base
    assert member.model.config.hidden_size == Member("base", str(DEMO["base"])).config.hidden_size
    assert member.id.id == "repository/inner"
    assert member.eos_ids == Member("base", str(DEMO["base"])).eos_ids


def test_a_model_that_accelerate_places_writes_the_same(prompts):
    """Its layers bear hooks, so that transformers' own pass runs."""
    requests = [Request(prompt, 0, 10, GREEDY) for prompt in prompts[:2]]
    texts = []
    for device_map in (None, "auto"):
        member = Member("base", str(DEMO["base"]), given=ModelArguments(device_map=device_map))
        made = dict(engine.generate(Pair(member, None), BaseAlone(), requests, batch_size=2))
        texts.append([made[i].tokens for i in range(2)])
        assert member.device.type == ("cpu" if not torch.cuda.is_available() else member.device.type)
    assert texts[0] == texts[1]


def test_a_checkpoint_has_an_id_and_a_revision(tmp_path):
    """A hub id may name one; of what is not cached it is the one asked for. Folders are taken as they are."""
    assert locate("owner/name") == ("owner/name", None)
    assert locate("owner/name@v1.0") == ("owner/name", "v1.0")
    (tmp_path / "with@sign").mkdir()
    assert locate(str(tmp_path / "with@sign")) == (str(tmp_path / "with@sign"), None)
    assert str(identify("owner/name@v1", "owner/name", "v1")) == "owner/name@v1"
    assert identify("owner/name", "owner/name", None).revision is None
    for role, folder in DEMO.items():  # the bundled ones have names of their own, a copy has its folder's
        (tmp_path / role).symlink_to(folder)
        copy = shutil.copytree(folder, tmp_path / f"copy of {role}")
        found = [identify(str(path), str(path), None) for path in (folder, tmp_path / role, copy)]
        assert [one.id for one in found] == [f"demo-{role}", f"demo-{role}", f"copy of {role}"]
        assert found[-1].revision == find_revision(str(folder), None)


def test_revisions_follow_the_bytes_that_loading_opens(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "parts/a.safetensors", "x": "/dev/null"}}')
    (tmp_path / "parts").mkdir()
    before = find_revision(str(tmp_path), None)
    (tmp_path / "README.md").write_text("not computed with")
    (tmp_path / "parts" / "optimizer.pt").write_text("nor this")
    assert find_revision(str(tmp_path), None) == before
    for weights in ("parts/a.safetensors", "model.safetensors"):
        (tmp_path / weights).write_bytes(bytes(2**18))
        assert find_revision(str(tmp_path), None) != before
        before = find_revision(str(tmp_path), None)
        (tmp_path / weights).write_bytes(bytes(2**18 - 1) + b"x")
        assert find_revision(str(tmp_path), None) != before
        before = find_revision(str(tmp_path), None)


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path, random_pair):
    return shutil.copytree(random_pair["base"], tmp_path / "spoilt")


def open_folder(folder):
    """All of what is read before the first token."""
    pair = Pair(Member("base", str(folder)), None)
    assert pair.base.model is not None
    return pair


@pytest.mark.parametrize("name", ["x.bin", "model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_pipe_is_refused_at_once(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with one_line(TakeoverError, f"base='{folder}': '{name}' is no regular file"):
        open_folder(folder)


FAR = {  # a token id that no vocabulary has
    "tokenizer.json": lambda tokenizer: tokenizer["model"]["vocab"].update({"far": 2**31 - 1}),
    "config.json": lambda config: config.update(vocab_size=2**31 - 1),
}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("left", ["far", None, 0, 0.5])
def test_a_file_that_is_gone_empty_cut_off_or_far_is_one_line(folder, name, left):
    content, words = (folder / name).read_bytes(), f"base='{folder}' cannot be loaded"
    if left == "far" and name in FAR:
        edit(folder / name, FAR[name])
        words = "more than any real vocabulary"
    elif left is None:
        (folder / name).unlink()
        (folder / name).symlink_to("/nowhere")
    else:
        (folder / name).write_bytes(content[: int((left if left != "far" else 0.9) * len(content))])
    with one_line(TakeoverError, str(folder), words):
        open_folder(folder)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% for k in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
         "no end in 0.5 s"),
        ("{{ raise_exception('only \x1b[31mred\x1b[0m\nconversations') }}", "only \x1b[31mred"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{% for %}", "cannot be used: "),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)  # fmt: skip
def test_a_chat_template_that_fails_or_never_ends_is_one_line(folder, monkeypatch, template, words):
    monkeypatch.setattr(pairs, "TEMPLATE_SECONDS", 0.5)
    (folder / "chat_template.jinja").write_text(template)
    pair = open_folder(folder)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
    with one_line(TakeoverError, f"the chat template of '{folder}' cannot be used: ", words):
        pair.chat_prompt(messages)


def test_too_little_memory_is_one_line_under_the_commands():
    done = run_code("""
import sys
sys.argv = ["lm_eval"]
from lm_eval_takeover.stopping import install_error_hook
install_error_hook()
bytes(2**60)
""")
    assert done.returncode == 2 and done.stderr.startswith("error: too little memory (") and done.stderr.count("\n") == 1


def rename(file, pattern, new, kept=False):
    """Weights of these names get new ones, or go where there are none; if `kept`, the old ones stay beside them."""
    weights = load_file(file)
    for name in [name for name in weights if re.search(pattern, name)]:
        weight = weights[name].clone() if kept else weights.pop(name)
        if new is not None:
            weights[re.sub(pattern, new, name)] = weight
    save_file(weights, file, {"format": "pt"})


def lose_shard(folder):
    """The weights in shards, of which the index leaves out the last."""
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="40KB")
    (folder / "model.safetensors").unlink()

    def leave_out(content):
        last = max(content["weight_map"].values())
        content["weight_map"] = {name: shard for name, shard in content["weight_map"].items() if shard != last}
        (folder / last).unlink()

    edit(folder / "model.safetensors.index.json", leave_out)


def renaming(pattern, new):
    return lambda folder: rename(folder / "model.safetensors", pattern, new)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (renaming("1.mlp.up_proj", "1.mlp.up"),
         ("('model.safetensors') lacks 1 of the model's 21 ", f"{NAME}; it has these instead: {NAME.replace('_proj', '')}; ")),
        (renaming(".layers.1.", None), ("lacks 9 of the model's 21 weights: model.layers.1.input_layernorm.weight, ",)),
        (renaming("^", "module."), ("more; it has these instead: module.model.embed_tokens.weight, ",)),
        (lambda folder: edit(folder / "config.json", lambda config: config.update(intermediate_size=65)),
         ("has 6 weights of another shape than its configuration says: ", "0.mlp.up_proj.weight is 64x32, not 65x32")),
        (lose_shard, ("('model.safetensors.index.json') lacks ", "weights: ")),
    ],
)  # fmt: skip
def test_weights_that_are_not_the_model_s_are_refused_by_name(folder, spoil, words, capfd):
    spoil(folder)
    capfd.readouterr()
    with one_line(ArgumentError, f"base='{folder}' ", *words):
        open_folder(folder)
    assert "LOAD REPORT" not in capfd.readouterr().err


@pytest.fixture
def adapter(tmp_path, random_pair):
    return save_adapter(random_pair["base"], tmp_path / "adapter", 0)


def load_adapted(random_pair, adapter):
    return Member("guide", str(random_pair["base"]), given=ModelArguments(peft=str(adapter))).model


@pytest.mark.parametrize(
    ("pattern", "new", "kept", "words"),
    [
        ("layers.1.*lora_A", None, False,
         "lacks 2 of the adapter's weights: base_model.model.model.layers.1.self_attn.q_proj.lora_A"),
        ("1.self_attn", "1.attn", False, "instead: base_model.model.model.layers.1.attn.q_proj.lora_A"),
        ("layers.1", "layers.7", False, "instead: base_model.model.model.layers.7.self_attn.q_proj.lora_A"),
        ("layers.1", "layers.7", True, "has 4 weights that belong to no layer of the model"),
    ],
)  # fmt: skip
def test_an_adapter_of_other_layers_is_refused_by_name(adapter, random_pair, pattern, new, kept, words):
    rename(adapter / "adapter_model.safetensors", pattern, new, kept)
    with one_line(ArgumentError, f"guide_peft='{adapter}' ('adapter_model.safetensors') ", words):
        load_adapted(random_pair, adapter)


def test_an_adapter_changes_the_layers_and_is_neither_of_the_prompt_nor_a_model(adapter, tmp_path, random_pair):
    """In a model's folder transformers would load the model that the adapter names, and the adapter into it."""
    plain, adapted = Member("base", str(random_pair["base"])).model, load_adapted(random_pair, adapter)
    assert not torch.allclose(*(model(**model.dummy_inputs).logits for model in (plain, adapted)))
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(random_pair["base"] / name, adapter)
    with one_line(ArgumentError, f"base='{adapter}' ", "peft="):
        open_folder(adapter)
    pytest.importorskip("peft").PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM").save_pretrained(tmp_path)
    with one_line(ArgumentError, "guide_peft=", "changes the prompt; expected one of the layers"):
        load_adapted(random_pair, tmp_path)


def test_dtype_and_size_are_known_before_the_weights_are_loaded(adapter, random_pair, tmp_path):
    """Of each kind of checkpoint as of the loaded model: tied weights count once, an adapter's numbers are added."""
    untied = save_random_model(tmp_path / "untied", vocab_size=512, seed=1, kind="llama", tie_word_embeddings=False)
    half = save_random_model(tmp_path / "half", vocab_size=512, seed=1)
    Member("base", str(half), dtype=torch.bfloat16).model.save_pretrained(half)
    silent = shutil.copytree(half, tmp_path / "silent")
    edit(silent / "config.json", lambda config: config.pop("dtype"))
    members = [Member("base", str(folder)) for folder in (random_pair["base"], untied, half, silent)]
    members.append(Member("base", str(half), dtype=torch.float32))
    members.append(Member("guide", str(random_pair["base"]), given=ModelArguments(peft=str(adapter))))
    told = [member.weights for member in members]
    assert told == [(str(member.model.dtype), member.model.num_parameters()) for member in members]
    dtypes = [weights.dtype.removeprefix("torch.") for weights in told]
    assert dtypes == ["float32", "float32", "bfloat16", "bfloat16", "float32", "float32"]

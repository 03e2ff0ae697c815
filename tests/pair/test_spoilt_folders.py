"""Folders of models in which something is missing or not what it should be: one line that names it, never a wait."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from helpers.one_line import one_line
from helpers.processes import environment
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.errors import ArgumentError, TakeoverError
from lm_eval_takeover.pair import pair as pairs
from lm_eval_takeover.pair.member import Member, refuse_unread
from lm_eval_takeover.pair.pair import Pair

MESSAGES = [{"role": "user", "content": "How many?"}]
NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path, random_pair):
    return shutil.copytree(random_pair["base"], tmp_path / "spoilt")


def open_folder(folder):
    """All of what is read before the first token."""
    pair = Pair(Member("base", str(folder)), None)
    assert pair.base.model is not None
    return pair


def edit(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


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
        ("{{ messages[0].nothing.more }}", "cannot be used: "),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)  # fmt: skip
def test_a_chat_template_that_fails_or_never_ends_is_one_line(folder, monkeypatch, template, words):
    monkeypatch.setattr(pairs, "TEMPLATE_SECONDS", 0.5)
    (folder / "chat_template.jinja").write_text(template)
    pair = open_folder(folder)
    messages = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    with one_line(TakeoverError, f"the chat template of '{folder}' cannot be used: ", words):
        pair.chat_prompt(messages)


LITTLE = """
import sys
sys.argv = ["lm_eval"]
from lm_eval_takeover.errors import install_error_hook
install_error_hook()
bytes(2**60)
"""


def test_too_little_memory_is_one_line_under_the_commands():
    done = subprocess.run([sys.executable, "-c", LITTLE], capture_output=True, text=True, env=environment())
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
    peft = pytest.importorskip("peft")
    model = AutoModelForCausalLM.from_pretrained(random_pair["base"])
    settings = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "init_lora_weights": False}
    peft.get_peft_model(model, peft.LoraConfig(**settings)).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


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


def test_a_joined_projection_of_which_a_part_was_not_read_is_refused():
    """As vLLM joins them: it takes the whole as read."""
    model = torch.nn.ModuleDict({"qkv": torch.nn.Linear(4, 6), "norm": torch.nn.LayerNorm(4)})

    def read(rows):
        for name, weight in model.named_parameters():
            end = rows if name == "qkv.weight" else len(weight)
            weight.data[:end] = 1.0

    with refuse_unread({"guide": model}):
        read(6)
    with (
        pytest.raises(ArgumentError, match=r"lack 1 of their models' weights: guide.qkv.weight; "),
        refuse_unread({"guide": model}),
    ):
        read(4)

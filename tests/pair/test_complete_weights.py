"""A checkpoint or an adapter without some of its weights is one line with its role, its file and the first names."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.pair.complete_weights import refuse_unread
from lm_eval_takeover.pair.member import Member

NAME = "model.layers.1.mlp.up_proj.weight"


def rename(weights):
    weights[NAME.replace("up_proj", "up")] = weights.pop(NAME)


def drop_layer(weights):
    for name in [name for name in weights if ".layers.1." in name]:
        del weights[name]


def prefix(weights):
    for name in list(weights):
        weights[f"module.{name}"] = weights.pop(name)


def reshape(weights):
    weights[NAME] = weights[NAME][:-1].clone()


@pytest.fixture
def checkpoint(tmp_path, random_pair):
    """A copy of a small checkpoint."""
    return shutil.copytree(random_pair["base"], tmp_path / "spoilt")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (rename, f"lacks 1 of the model's 21 weights: {NAME}; it has these instead: {NAME.replace('up_proj', 'up')}; "),
        (drop_layer, "lacks 9 of the model's 21 weights: model.layers.1.input_layernorm.weight, "),
        (prefix, "more; it has these instead: module.model.embed_tokens.weight, "),
        (reshape, f"has 1 weights of another shape than its configuration says: {NAME} is 63x32, not 64x32; "),
    ],
)
def test_a_spoilt_file_is_refused_by_name(checkpoint, spoil, words, capfd):
    weights = load_file(checkpoint / "model.safetensors")
    spoil(weights)
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    check_refusal(lambda: Member("base", str(checkpoint)).model, f"base='{checkpoint}' ('model.safetensors') ", words)
    assert "LOAD REPORT" not in capfd.readouterr().err


def test_a_shard_that_the_index_leaves_out_is_refused_by_name(checkpoint):
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    (checkpoint / "model.safetensors").unlink()
    model.save_pretrained(checkpoint, max_shard_size="40KB")
    index = checkpoint / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    last = max(content["weight_map"].values())
    content["weight_map"] = {name: shard for name, shard in content["weight_map"].items() if shard != last}
    (checkpoint / last).unlink()
    index.write_text(json.dumps(content))
    check_refusal(lambda: Member("guide", str(checkpoint)).model, f"guide='{checkpoint}' ('{index.name}') lacks ", "weights: ")


@pytest.mark.parametrize("role", DEMO)
def test_tied_weights_are_not_missing(role, caplog):
    assert Member(role, str(DEMO[role])).model is not None
    assert not caplog.records


@pytest.fixture
def adapter(tmp_path, random_pair):
    peft = pytest.importorskip("peft")
    model = AutoModelForCausalLM.from_pretrained(random_pair["base"])
    settings = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "init_lora_weights": False}
    peft.get_peft_model(model, peft.LoraConfig(**settings)).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def load_adapted(random_pair, adapter):
    return Member("guide", str(random_pair["base"]), given=ModelArguments(peft=str(adapter))).model


def test_an_adapter_changes_the_layers(adapter, random_pair):
    plain, adapted = Member("base", str(random_pair["base"])).model, load_adapted(random_pair, adapter)
    first = [model(**model.dummy_inputs).logits for model in (plain, adapted)]
    assert not torch.allclose(*first)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("lora_A", None, "lacks 2 of the adapter's weights: base_model.model.model.layers.1.self_attn.q_proj.lora_A"),
        ("self_attn", "attn", "instead: base_model.model.model.layers.1.attn.q_proj.lora_A"),
        ("layers.1.", "layers.7.", "instead: base_model.model.model.layers.7.self_attn.q_proj.lora_A"),
    ],
)
def test_an_adapter_of_other_layers_is_refused_by_name(adapter, random_pair, old, new, words):
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    for name in [name for name in weights if old in name and ".layers.1." in name]:
        weight = weights.pop(name)
        if new is not None:
            weights[name.replace(old, new)] = weight
    save_file(weights, file, {"format": "pt"})
    check_refusal(lambda: load_adapted(random_pair, adapter), f"guide_peft='{adapter}' ('{file.name}') ", words)


def test_an_adapter_with_weights_of_no_layer_is_refused(adapter, random_pair):
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    weights |= {name.replace("layers.1", "layers.7"): weight.clone() for name, weight in weights.items() if "layers.1" in name}
    save_file(weights, file, {"format": "pt"})
    check_refusal(
        lambda: load_adapted(random_pair, adapter), "guide_peft=", "has 4 weights that belong to no layer of the model"
    )


def test_an_adapter_of_the_prompt_is_refused(tmp_path, random_pair):
    peft = pytest.importorskip("peft")
    peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM").save_pretrained(tmp_path)
    check_refusal(lambda: load_adapted(random_pair, tmp_path), "guide_peft=", "changes the prompt; expected one of the layers")


def test_an_adapter_beside_a_model_is_refused(adapter, random_pair):
    """transformers would load the model that the adapter names, and the adapter into it."""
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(random_pair["base"] / name, adapter)
    check_refusal(lambda: Member("base", str(adapter)).model, f"base='{adapter}' ", "peft=")


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


def check_refusal(load, start, words):
    with pytest.raises(ArgumentError) as caught:
        load()
    text = str(caught.value)
    assert text.startswith(start) and words in text and "\n" not in text

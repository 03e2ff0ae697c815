"""What a prompt becomes: BOS as asked for, chat templates by name, and a line where the two tokenizers would differ."""

import json
import shutil

import pytest
from architectures import save_model
from helpers.one_line import one_line
from lm_eval.models.huggingface import HFLM

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.pair.loading import load_pair
from lm_eval_takeover.pair.vocabulary import adds_bos

TEXT, BOS = "Ann has 3 Apples.", "<|endoftext|>"


def begin(tokenizer):
    """Texts begin with the BOS, as the file says."""
    first = {"SpecialToken": {"id": BOS, "type_id": 0}}
    processor = tokenizer["post_processor"]
    processor["single"].insert(0, first)
    processor["pair"].insert(0, first)
    processor["special_tokens"] = {BOS: {"id": BOS, "ids": [401], "tokens": [BOS]}}


def lower(tokenizer):
    tokenizer["normalizer"] = {"type": "Lowercase"}


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def copy_pair(folder, edits, **config):
    """The demo pair with these edits of a role's tokenizer, and entries of both `tokenizer_config.json`."""
    for role in DEMO:
        shutil.copytree(DEMO[role], folder / role)
        edit(folder / role / "tokenizer.json", edits.get(role, lambda tokenizer: None))
        edit(folder / role / "tokenizer_config.json", lambda content: content.update(config))
    return {role: str(folder / role) for role in DEMO}


WORLDS = {
    "equal": ({}, {}, ()),
    "both begin": ({"base": begin, "guide": begin}, {}, ()),
    "a guide in lower case": ({"guide": lower}, {}, ("makes 14 tokens and the guide's 12, others from 'Ann' and 'ann ha' on",)),
    "only the base begins": (
        {"base": begin},
        {},
        (f"the base's tokenizer begins texts with '{BOS}'", "guide_add_bos_token=True"),
    ),
    "and the guide is told to": ({"base": begin}, {"guide_add_bos_token": True}, ()),
    "only the guide begins": (
        {"guide": begin},
        {},
        (f"the guide's tokenizer begins texts with '{BOS}'", "guide_add_bos_token=False"),
    ),
    "and is told not to": ({"guide": begin}, {"guide_add_bos_token": False}, ()),
    "both are told to": ({}, {"add_bos_token": True}, ()),
}


@pytest.mark.parametrize("world", WORLDS)
def test_a_line_says_where_the_tokenizers_differ(tmp_path, caplog, world):
    edits, arguments, words = WORLDS[world]
    pair = load_pair(ModelArguments(**copy_pair(tmp_path, edits, bos_token=BOS), **arguments))
    ids = pair.encode(TEXT)
    begins = dict.fromkeys(arguments.values()) or {edits.get("guide") is begin: None}
    assert [ids[0] == 401] == list(begins)
    assert pair.encode(BOS + TEXT).count(401) == 1  # no second one
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == bool(words) and all(word in said[0] for word in words), said


@pytest.mark.parametrize("edits", [{}, {"guide": begin}])
def test_a_model_alone_encodes_as_hf_does(tmp_path, edits):
    folder = copy_pair(tmp_path, edits, bos_token=BOS)["guide"]
    for wanted in (None, True, False):
        pair = load_pair(ModelArguments(base=folder, policy="base", add_bos_token=wanted))
        stock = HFLM(pretrained=folder, add_bos_token=wanted, device="cpu")
        for text in (TEXT, BOS + TEXT):
            assert pair.encode(text) == stock.tok_encode(text)


@pytest.mark.parametrize(
    ("kind", "config", "told"),
    [
        ("qwen3", {"add_bos_token": True}, True),
        ("qwen3", {}, False),
        ("qwen3", {"add_bos_token": False}, False),
        ("gemma3_text", {}, True),  # a family that needs it
        ("gemma3_text", {"add_bos_token": False}, False),
    ],
)
def test_a_bos_that_is_left_out_against_file_or_family_is_a_line(tmp_path, caplog, kind, config, told):
    folder = save_model(tmp_path / "model", kind)
    edit(folder / "tokenizer_config.json", lambda content: content.update(config, bos_token=BOS))
    pair = load_pair(ModelArguments(base=str(folder), policy="base"))
    assert pair.encode(TEXT)[0] != 401
    assert (
        (f"does not begin texts with '{BOS}', which the model expects" in caplog.text)
        == ("add_bos_token=True" in caplog.text)
        == told
    )
    caplog.clear()
    assert load_pair(ModelArguments(base=str(folder), policy="base", add_bos_token=True)).encode(TEXT)[0] == 401
    assert not caplog.text


@pytest.mark.parametrize(("value", "says"), [(b"\x01", True), (b"\x00", False), (None, None)])
def test_a_gguf_file_says_whether_texts_begin_with_a_bos(tmp_path, value, says):
    field = b"" if value is None else b"tokenizer.ggml.add_bos_token\x07\0\0\0" + value
    (tmp_path / "x.gguf").write_bytes(b"GGUF\x03" + bytes(40) + field + bytes(40))
    assert adds_bos(tmp_path, "x.gguf") is says


def test_a_chat_template_is_chosen_by_its_name():
    pair, messages = load_pair(ModelArguments()), [{"role": "user", "content": TEXT}]
    pair.template = "brief"
    with one_line(ArgumentError, "--apply_chat_template 'brief' is no template of ", "; it has one template without a name"):
        pair.chat_prompt(messages)
    pair.tokenizer.chat_template = {"default": "{{ messages[0].content }}", "brief": "Be brief: {{ messages[0].content }}"}
    assert pair.chat_prompt(messages) == f"Be brief: {TEXT}"
    pair.template = "breif"
    with one_line(ArgumentError, "did you mean 'brief'?"):
        pair.chat_prompt(messages)


def test_a_model_that_writes_no_text_by_transformers_is_refused_at_once(tmp_path):
    shutil.copytree(DEMO["base"], tmp_path / "t5")
    (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5"}')
    with one_line(
        ArgumentError, "has no class for models of type 't5' that writes text; a newer one may have it, or backend=vllm"
    ):
        load_pair(ModelArguments(base=str(tmp_path / "t5"), policy="base"))

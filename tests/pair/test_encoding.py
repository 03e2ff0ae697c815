"""What two models must share, and what a prompt becomes: BOS as asked for, chat templates by name, tokens as texts.

A line says where the two tokenizers would differ.
"""

import json
import random
import shutil

import pytest
from architectures import save_model
from helpers.one_line import one_line
from helpers.pairs import edit
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, VocabularyError
from lm_eval_takeover.lab.measures.planning import classify_vocabulary
from lm_eval_takeover.pair.pair import load_pair
from lm_eval_takeover.pair.vocabulary import Pieces, Vocabulary, adds_bos, share
from lm_eval_takeover.runs.run_reader import RunReader

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


def test_a_chat_template_is_chosen_by_its_name_and_one_has_to_be_there():
    pair, messages = load_pair(ModelArguments()), [{"role": "user", "content": TEXT}]
    pair.template = "brief"
    with one_line(ArgumentError, "--apply_chat_template 'brief' is no template of ", "; it has one template without a name"):
        pair.chat_prompt(messages)
    pair.tokenizer.chat_template = {"default": "{{ messages[0].content }}", "brief": "Be brief: {{ messages[0].content }}"}
    assert pair.chat_prompt(messages) == f"Be brief: {TEXT}"
    pair.template = "breif"
    with one_line(ArgumentError, "did you mean 'brief'?"):
        pair.chat_prompt(messages)
    pair.tokenizer.chat_template = None
    with one_line(ArgumentError, "--apply_chat_template: the tokenizer of ", " has no chat template"):
        pair.chat_prompt(messages)


def test_a_model_that_writes_no_text_by_transformers_is_refused_at_once(tmp_path):
    shutil.copytree(DEMO["base"], tmp_path / "t5")
    (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5"}')
    told = "has no class for models of type 't5' that writes text; a newer one may have it, or backend=vllm"
    with one_line(ArgumentError, told):
        load_pair(ModelArguments(base=str(tmp_path / "t5"), policy="base"))


def vocabulary(names, size=None, added=()):
    return Vocabulary(size or len(names), dict(enumerate(names)), frozenset(added))


WORDS = ["a", "b", "c", "d"]
BYTES = vocabulary(["\u0120the", "\u010a", "\u00c3\u00a9", "a"])
SENTENCEPIECE = vocabulary(["\u2581the", "<0x0A>", "\u00e9", "a"])
PLAIN = vocabulary([" the", "\n", "\u00e9", "a"])
RESERVED = vocabulary([*WORDS, "<|reserved_0|>", "<|reserved_1|>"], added=(4, 5))


@pytest.mark.parametrize(
    ("base", "guide", "size", "renamed"),
    [
        (vocabulary(WORDS, 8), vocabulary(WORDS, 10), 8, ()),  # Qwen2.5 pads to 151,936 or 152,064 by model size
        (BYTES, SENTENCEPIECE, 4, ()),  # two formats may spell the same tokens in two ways
        (BYTES, PLAIN, 4, ()),
        (PLAIN, SENTENCEPIECE, 4, ()),
        # Llama-3.1-8B and DeepSeek-R1-Distill-Llama-8B: reserved places became <think> and chat marks
        (RESERVED, vocabulary([*WORDS, "<think>", "<|reserved_1|>"], added=(4, 5)), 6, ((4, "<|reserved_0|>", "<think>"),)),
        # Qwen2.5 has no name where Qwen3 has <think>
        (vocabulary(WORDS, 8), vocabulary([*WORDS, "<think>"], 8, added=(4,)), 8, ((4, None, "<think>"),)),
    ],
)
def test_what_families_differ_in_is_shared(base, guide, size, renamed):
    shared, turned = share(base, guide), share(guide, base)
    assert (shared.size, shared.renamed) == (size, renamed)
    assert (turned.size, turned.renamed) == (size, tuple((index, two, one) for index, one, two in renamed))


@pytest.mark.parametrize(
    ("base", "guide", "told"),
    [
        (vocabulary(WORDS), vocabulary(["a", "c", "b", "d"]), "2 of 4 entries differ, first id 1: base 'b', guide 'c'"),
        (vocabulary(WORDS), vocabulary(["a", "b", "c"], 4), "1 of 4 entries differ, first id 3: base 'd', guide None"),
        (vocabulary(WORDS), vocabulary(["a", "b", "c", "<x>"], added=(3,)), "1 of 4"),  # an ordinary token is no special one
        (BYTES, vocabulary(["the", "<0x0A>", "\u00e9", "a"]), "1 of 4"),
        (vocabulary([f"x{i}" for i in range(100)]), vocabulary([f"y{i}" for i in range(100)]), "100 of 100 entries differ, "),
    ],
)
def test_a_real_mismatch_shows_the_first_differing_entries(base, guide, told):
    with pytest.raises(VocabularyError, match=f"do not share a vocabulary: {told}") as caught:
        share(base, guide)
    assert ("and 95 more" in str(caught.value)) == told.startswith("100")


def test_digest_tells_vocabularies_apart():
    one, same = share(vocabulary(WORDS, 8), vocabulary(WORDS, 9)), share(vocabulary(WORDS, 9), vocabulary(WORDS, 8))
    other = share(vocabulary(["a", "b", "c", "x"], 8), vocabulary(["a", "b", "c", "x"], 8))
    assert one.digest == same.digest != other.digest


def test_characters_of_several_tokens_stay_whole():
    tokenizer = AutoTokenizer.from_pretrained(DEMO["base"])
    pieces, tokens = Pieces(tokenizer), tokenizer.encode("aéb")
    assert pieces.split(tokens) == ["a", "", "é", "b"]
    assert pieces.split(tokens[:2]) == ["a", "\ufffd"]
    assert pieces.name(tokens[2]) == "\ufffd"


def make_sentencepiece():
    """A small vocabulary in the form of Llama 2's file."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁thewai,.'√", "th", "▁th", "▁the"]
    vocabulary, merges = {name: place for place, name in enumerate(names)}, [("t", "h"), ("▁", "th"), ("▁th", "e")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens(["<think>"])
    return tokenizer


@pytest.mark.parametrize(("model_type", "name", "of_bytes", "end"), [
    ("qwen3", "Qwen2Tokenizer", True, "<|im_end|>"),
    ("qwen2", "LlamaTokenizerFast", True, "<|im_end|>"),  # as DeepSeek-R1-Distill-Qwen
    ("llama", "PreTrainedTokenizerFast", True, "<|end|>"),  # a token that is only here
    ("llama", "LlamaTokenizer", False, "</s>"),  # whose class adds no space to the added token
])  # fmt: skip
def test_pieces_are_those_of_the_model_s_own_class(model_type, name, of_bytes, end, tmp_path):
    shutil.copy(DEMO["base"] / "tokenizer.json", tmp_path)
    if not of_bytes:
        make_sentencepiece().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    words = {"tokenizer_class": name, "eos_token": end, "clean_up_tokenization_spaces": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(words))
    inner = {"guide": str(tmp_path.parent), "guide_subfolder": tmp_path.name, "subfolder": "the base's"}
    run = RunReader(tmp_path, {"arguments": inner})
    light, own = run.load_tokenizer(), AutoTokenizer.from_pretrained(tmp_path)
    pieces, wanted = Pieces(light), Pieces(own)
    names = wanted.list_names()
    assert pieces.list_names() == names and end in names
    draw = random.Random(0)
    for text in ([draw.randrange(len(names)) for _ in range(draw.randrange(1, 40))] for _ in range(200)):
        assert pieces.split(text) == wanted.split(text)
    known = [classify_vocabulary(names, each.encode).characters for each in (pieces, wanted)]
    assert known[0] == known[1]

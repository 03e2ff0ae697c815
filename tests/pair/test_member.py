"""Loading arguments reach transformers and peft, for the base and for the guide, and split models compute.

A checkpoint is known by its files, not by where it lies; the bundled ones by their names.
"""

import shutil
import sys

import pytest
import torch
from helpers.one_line import one_line
from helpers.pairs import GREEDY
from transformers import AutoModelForCausalLM

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding import engine
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policies import BaseAlone
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.ids import find_revision, identify, locate
from lm_eval_takeover.pair.loading import load_pair
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

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

"""Calibration files: what a file survives, and what is refused with the name of its field."""

import hashlib
import json
from dataclasses import replace

import pytest
from helpers.calibrations import BASE, GUIDE

from lm_eval_takeover.calibration.files import (
    find_calibration,
    is_for_pair,
    read_calibration,
    write_calibration,
)
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.method.model_id import ModelId


def test_a_written_file_reads_back(made, tmp_path):
    path = tmp_path / "deep" / "made.json"
    write_calibration(made, path)
    assert read_calibration(path) == made
    assert json.loads(path.read_text())["schema"] == 4
    assert len(path.read_text().splitlines()) < 150  # long lists stand on one line each
    assert [p.name for p in path.parent.iterdir()] == ["made.json"]


def test_a_failed_write_keeps_the_old_file(made, tmp_path):
    path = tmp_path / "made.json"
    write_calibration(made, path)
    before = path.read_text()
    with pytest.raises(TypeError):
        write_calibration(replace(made, notes=object()), path)
    assert path.read_text() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda c: c.pop("schema"), "has no field 'schema'"),
        (lambda c: c.update(schema=99), "schema=99 is newer than 4, which this version reads; upgrade"),
        (lambda c: c.update(schema=True), "field 'schema' is 'True'"),
        (lambda c: c.update(schema=-3), "field 'schema' is '-3'"),
        (lambda c: c.pop("base"), "field 'base' is missing"),
        (lambda c: c.pop("direction"), "field 'direction' is missing"),
        (lambda c: c.pop("source"), "field 'source' is missing"),
        (lambda c: c.pop("checksum"), "field 'checksum' is missing"),
        (lambda c: c["guide"].pop("revision"), "field 'guide.revision' is missing"),
        (lambda c: c.update(extra=1), "field 'extra' is not known"),
        (lambda c: c.update(score={}), "field 'score' is not known; did you mean 'scores'?"),
        (lambda c: c.update(scores={}), "field 'scores' is empty"),
        (lambda c: c.update(scores=None), "field 'scores' is NoneType, not an object"),
        (lambda c: c["scores"].update(kl=c["scores"]["ce"]), "field 'scores.kl' is not a score"),
        (lambda c: c["scores"]["ce"].pop("sketch"), "field 'scores.ce.sketch' is missing"),
        (lambda c: c["scores"]["ce"]["table"][2].update(tau=1.0), "'scores.ce.table' has another tau at rho=0.02"),
        (lambda c: c["scores"]["ce"]["table"][2].update(tau=None), "field 'scores.ce.table[rho=0.02].tau' is 'None'"),
        (lambda c: c["scores"]["ce"].update(table=3), "field 'scores.ce.table' is int, not a list"),
        (lambda c: c["scores"]["ce"].update(table=[]), "field 'scores.ce.table' has other spike ratios"),
        (lambda c: c["scores"].update(ce=[]), "field 'scores.ce' is list, not an object"),
        (lambda c: c["targets"][0].update(value=7), "field 'targets[0].value' is '7'"),
        (lambda c: c["targets"][0].update(realized_rate=2), "field 'targets[0].realized_rate' is '2'"),
        (lambda c: c["targets"][0]["method"].update(score="kl"), "field 'targets[0].method.score' is not known: kl"),
        (lambda c: c["targets"][0].pop("budget_parameter"), "field 'targets[0].budget_parameter' is missing"),
        (lambda c: c["targets"][0]["method"].update(window=0), "field 'targets[0].method.window' is '0'"),
        (lambda c: c.update(targets={}), "field 'targets' is dict, not a list"),
        (lambda c: c["scores"]["ce"]["sketch"]["tau"].pop(), "field 'scores.ce.sketch' is damaged"),
        (lambda c: c["scores"]["ce"].update(mean=float("nan")), "field 'scores.ce.mean' is 'nan'"),
        (lambda c: c["scores"]["ce"].update(mean=10**400), "field 'scores.ce.mean' is '1000"),
        (lambda c: c["scores"]["ce"].update(mean=0), "field 'scores.ce.mean' is 0"),
        (lambda c: c["scores"]["ce"]["sketch"]["rho"].reverse(), "field 'scores.ce.sketch' is damaged"),
        (lambda c: [one.clear() for one in c["scores"]["ce"]["sketch"].values()], "'scores.ce.sketch' is damaged"),
        (lambda c: c["scores"]["ce"]["sketch"].update(tau="high"), "field 'scores.ce.sketch.tau' is str, not a list"),
        (lambda c: c["scores"]["ce"]["sketch"]["tau"].__setitem__(3, "1.0"), "'scores.ce.sketch.tau' is '1.0'"),
        (lambda c: c["scores"]["ce"]["sketch"]["tail_mean"].__setitem__(100, 9.0), "field 'checksum' does not fit"),
        (lambda c: c.update(vocabulary="x"), "field 'vocabulary' is str, not an object"),
        (lambda c: c.update(vocabulary=None), "field 'vocabulary' is NoneType, not an object"),
        (lambda c: c["prompts"].pop("chat_template"), "field 'prompts.chat_template' is missing"),
        (lambda c: c["prompts"].pop("enable_thinking"), "field 'prompts.enable_thinking' is missing"),
        (lambda c: c["decoding"].pop("top_k"), "field 'decoding.top_k' is 'None'"),
        (lambda c: c.pop("dtypes"), "field 'dtypes.base' is missing"),
        (lambda c: c.update(cut="few"), "field 'cut' is 'few'"),
        (lambda c: c.update(diagnostic="takeover_gsm8k"), "field 'diagnostic' is str, not a list"),
        (lambda c: c.update(tokens="83827"), "field 'tokens' is '83827', not a whole number"),
        (lambda c: c["base"].update(id=None), "field 'base' is damaged"),
        (lambda c: c["base"].update(id="other/base"), "field 'checksum' does not fit: the file was edited"),
        (lambda c: c.update(direction="up"), "field 'direction' is not known: up"),
        (lambda c: c.update(source="published"), "field 'columns' is empty"),
        (lambda c: c.update(columns={"ce": {}}), "has no row"),
        (lambda c: c.update(columns={"ce": {"A": [{"tau": 1}]}}), "field 'columns.ce.A[0].kappa' is 'None'"),
        (lambda c: c.update(columns={"ce": {"A": [{"tau": "1", "kappa": 1}]}}), "field 'columns.ce.A[0].tau' is '1'"),
        (lambda c: c.update(columns={"ce": {"A": [{"tau": 1, "kappa": 1}]}}, default_row="B"), "has no row 'B'"),
        (
            lambda c: c.update(columns={"ce": {"A": [{"tau": 1, "kappa": 1}], "B": [{"tau": 1, "kappa": 1}] * 2}}),
            "field 'columns.ce' has rows of other lengths",
        ),
    ],
)
def test_a_damaged_file_is_named_with_its_field(made, tmp_path, edit, text):
    path = tmp_path / "made.json"
    write_calibration(made, path)
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    with pytest.raises(CalibrationError) as caught:
        read_calibration(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_calibration_has_a_bounded_size(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(
        CalibrationError, match=r"huge\.json' cannot be read: .*it has more than 64 MB.*; make a new one"
    ):
        read_calibration(path)


def test_notes_may_be_edited(made, tmp_path):
    path = tmp_path / "made.json"
    write_calibration(made, path)
    path.write_text(path.read_text().replace('"notes": ""', '"notes": "measured on a Sunday [ 1 2 ]"'))
    assert read_calibration(path).notes == "measured on a Sunday [ 1 2 ]"
    template = "- [ ] {{q}} [1,   2]"
    write_calibration(replace(made, prompts=made.prompts | {"template": template}), path)
    assert read_calibration(path).prompts["template"] == template


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"a": 1}', "\x00\x01", "[" * 100_000, "9" * 5000])
def test_what_is_no_calibration_file_is_refused(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(CalibrationError, match=r"x\.json"):
        read_calibration(path)


def test_an_unknown_name_suggests_a_packaged_one():
    with pytest.raises(CalibrationError, match=r"neither a file nor a packaged calibration .* did you mean 'demo'"):
        find_calibration("demmo")


def test_pairs_match_by_files_or_by_hub_id(made):
    assert is_for_pair(made, BASE, GUIDE)
    assert is_for_pair(made, ModelId("some/base", "another commit"), GUIDE)
    assert not is_for_pair(made, GUIDE, BASE)
    assert not ModelId("a/x", "main").same_model(ModelId("b/y", "main"))
    local = ModelId("base", "sha256:11")
    assert is_for_pair(replace(made, base=local), ModelId("renamed", "sha256:11"), GUIDE)
    assert not is_for_pair(replace(made, base=local), ModelId("base", "sha256:22"), GUIDE)


def test_the_packaged_demo_calibration_is_complete():
    demo = find_calibration("demo")[0]
    assert demo.schema == 3
    assert (demo.prompts["chat_template"], demo.prompts["enable_thinking"], demo.cut) == (False, None, 0)
    assert demo.dtypes == {"base": "torch.float32", "guide": "torch.float32"}
    assert demo.rollouts == 500
    ours = ["ce", "rkl", "entropy", "js", "margin", "confidence", "top1", "surprise", "log_ratio"]
    assert list(demo.scores) == ours
    assert [name for name in ours if demo.scores[name].signed] == ["log_ratio"]
    for held in demo.scores.values():
        for row in held.table:
            # the window test only holds takeovers back
            assert 0 <= row["share_tail_to_mean"] <= row["share_threshold_to_mean"] <= row["rho"] + 0.0005
    assert [target.target_rate for target in demo.targets] == [0.02, 0.05, 0.08, 0.1]
    assert all(abs(target.realized_rate - target.target_rate) <= 0.005 for target in demo.targets)


@pytest.mark.parametrize("schema", [1, 2])
def test_files_of_older_schemas_are_still_read_and_do_not_pretend(made, tmp_path, schema):
    path = tmp_path / "old.json"
    write_calibration(made, path)
    content = json.loads(path.read_text())
    for name in ("dtypes", "cut", "diagnostic", "checksum"):
        content.pop(name)
    content["prompts"].pop("enable_thinking")
    if schema == 1:
        content.pop("targets"), content.pop("window"), content["scores"]["ce"].pop("rank_error")
    else:
        signed = {name: value for name, value in (content | {"schema": 2}).items() if name != "notes"}
        content["checksum"] = f"sha256:{hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()}"
    path.write_text(json.dumps(content | {"schema": schema}))
    old = read_calibration(path)
    assert old.score("ce").threshold(0.03) == made.score("ce").threshold(0.03)
    assert (old.dtypes, old.cut, "enable_thinking" in old.prompts) == ({}, None, False)

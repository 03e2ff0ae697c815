"""Calibration files: what a file survives, and what is refused with the name of its field."""

import json
from dataclasses import replace

import pytest
from helpers.calibrations import BASE, GUIDE
from helpers.one_line import one_line

from lm_eval_takeover.calibration.files import (
    compute_checksum,
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


def published(content, columns, default_row=None):
    content.update(source="published", columns=columns, default_row=default_row)


def spoil(path, edit, **signed):
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content | {name: sign(content) for name, sign in signed.items()}))


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda c: c.pop("schema"), "has no field 'schema'"),
        (lambda c: c.update(schema=99), "field 'schema' is 99, and this version reads 4; make a new one"),
        (lambda c: c.pop("base"), "field 'base' is missing"),
        (lambda c: c.update(score={}), "field 'score' is not known; known: base"),
        (lambda c: c.update(scores={}), "field 'scores' is empty"),
        (lambda c: c["scores"]["ce"]["table"][2].update(tau=1.0), "'scores.ce.table' has another tau at rho=0.02"),
        (lambda c: c["scores"]["ce"]["table"][2].update(tau=None), "field 'scores.ce.table[2].tau' is null"),
        (lambda c: c["scores"]["ce"].update(table=[]), "field 'scores.ce.table' has other spike ratios"),
        (lambda c: c["scores"]["ce"]["sketch"]["tau"].pop(), "is damaged: "),
        (lambda c: c["scores"]["ce"].update(mean=10**400), "field 'scores.ce.mean' is 1000"),
        (lambda c: c["targets"][0]["method"].update(window=0), "field 'targets[0].method.window' is 0"),
        (lambda c: c.update(vocabulary=None), "field 'vocabulary' is null, expected an object"),
        (lambda c: c["prompts"].pop("chat_template"), "field 'prompts.chat_template' is missing"),
        (lambda c: published(c, {"ce": {}}), "has no row"),
        (lambda c: published(c, {"ce": {"A": [{"tau": 1}]}}), "field 'columns.ce.A[0].kappa' is missing"),
        (lambda c: published(c, {"ce": {"A": [{"tau": 1, "kappa": 1}]}}, "B"), "has no row 'B'"),
    ],
)
def test_a_damaged_file_is_named_with_its_field(made, tmp_path, edit, text):
    """Also where a stranger made its checksum fit again."""
    path = tmp_path / "made.json"
    write_calibration(made, path)
    spoil(path, edit, checksum=compute_checksum)
    with one_line(CalibrationError, text, str(path)):
        read_calibration(path)


@pytest.mark.parametrize(
    "edit", [lambda c: c.pop("checksum"), lambda c: c["base"].update(id="other/base"),
             lambda c: c["scores"]["ce"]["sketch"]["tail_mean"].__setitem__(100, 9.0)],
)  # fmt: skip
def test_an_edited_file_is_refused(made, tmp_path, edit):
    path = tmp_path / "made.json"
    write_calibration(made, path)
    spoil(path, edit)
    with one_line(CalibrationError, "field 'checksum' does not fit: the file was edited", str(path)):
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
    with pytest.raises(CalibrationError, match=r"neither a file nor a packaged one; did you mean 'demo'"):
        find_calibration("demmo")


def test_pairs_match_by_files_or_by_hub_id(made):
    assert is_for_pair(made, BASE, GUIDE)
    assert is_for_pair(made, ModelId("some/base", "another commit"), GUIDE)
    assert not is_for_pair(made, GUIDE, BASE)
    assert not ModelId("a/x", "main").same_model(ModelId("b/y", "main"))
    local = ModelId("base", "sha256:11")
    assert is_for_pair(replace(made, base=local), ModelId("renamed", "sha256:11"), GUIDE)
    assert not is_for_pair(replace(made, base=local), ModelId("base", "sha256:22"), GUIDE)

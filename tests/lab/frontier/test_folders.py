"""`frontier RUN…`: groups of methods, seeds and pairs in one frontier, and what it refuses."""

import csv
import itertools
import json
import statistics
from dataclasses import replace

import pytest
from helpers.one_line import one_line
from helpers.results import takeover, write_results

from lm_eval_takeover.calibration.files import find_calibration, write_calibration
from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import ArgumentError, TakeoverError
from lm_eval_takeover.lab.frontier.study import describe_frontier
from lm_eval_takeover.results.files import read_run
from lm_eval_takeover.results.kept_rows import ComparedRow, write_kept_rows

ALONE = {"base": [0, 1, 2, 1, 0, 3], "guide": [8, 7, 8, 8, 6, 8]}
NEAR = {"near@0.05": [4, 3, 8, 2, 5, 6], "near@0.1": [6, 6, 8, 4, 7, 8]}
FAR = {"far@0.05": [1, 1, 3, 1, 0, 4], "far@0.1": [2, 2, 5, 2, 1, 6]}


def write_comparison(folder, counts, *, seed=0, pair="acme/Small-Base", calibration=None, **written):
    """A folder as `compare` leaves it, of rows with so many of 8 samples correct. Returns its rows with their runs."""
    runs = {}
    for label, correct in counts.items():
        name, _, at = label.partition("@")
        rate = float(at or 0)
        told = {"tokens": 1000, "takeovers": round(1000 * rate), "realized_rate": rate, "changed": 10, "asked": 1000}
        given = {"base": pair, "seed": seed, "calibration": calibration, "per_task": {"takeover_demo": told}}
        run = takeover("random" if at else name, rate=rate, **given)
        method = {"host": "base", "donor": "guide", "word": name, "rate": rate} if at else {}
        results = write_results(folder / label / "results", {"takeover_demo": correct}, run=run, **written)
        runs[ComparedRow(label, name, **method)] = [read_run(*results.glob("results_*.json"))]
    write_kept_rows(folder, runs)
    return runs


def merge(tmp_path, other="two"):
    """The averages of all rows, and all areas."""
    words = ["frontier", *(str(tmp_path / name) for name in ("one", other))]
    assert main([*words, "--out", str(tmp_path / "merged")]) == 0
    lines = csv.DictReader((tmp_path / "merged" / "frontier.csv").read_text().splitlines())
    areas = json.loads((tmp_path / "merged" / "frontier_area.json").read_text())
    return [line for line in lines if line["task"] == "average"], areas


def list_areas(areas, **named):
    asked = {"axis": "share", "task": "average", "metric": "acc", **named}
    return [area["area"] for area in areas if asked.items() <= area.items()]


def test_groups_of_methods_are_merged_as_if_they_had_run_together(tmp_path, capsys):
    write_comparison(tmp_path / "one", ALONE | NEAR)
    write_comparison(tmp_path / "two", ALONE | FAR)
    together = describe_frontier(write_comparison(tmp_path / "all", ALONE | NEAR | FAR))
    lines, areas = merge(tmp_path)
    assert [line["row"] for line in lines] == [*ALONE, *NEAR, *FAR]
    assert {line["seeds"] for line in lines} == {"1"} and {line["acc_between_seeds"] for line in lines} == {""}
    assert areas == json.loads(json.dumps(together.all_areas))
    printed = capsys.readouterr()
    assert "Areas by share of tokens" in printed.out and printed.err == ""
    assert ">far</text>" in (tmp_path / "merged" / "frontier.svg").read_text()


def test_seeds_of_a_row_are_one_row_with_the_spread_between_them(tmp_path):
    other = {label: correct[1:] + correct[:1] for label, correct in NEAR.items()} | {"near@0.05": [8, 3, 8, 2, 5, 6]}
    write_comparison(tmp_path / "one", ALONE | NEAR)
    write_comparison(tmp_path / "two", ALONE | other, seed=1)
    lines, areas = merge(tmp_path)
    assert [(line["row"], line["seeds"]) for line in lines] == [(label, "2") for label in ALONE | NEAR]
    accs = {label: [sum(counts[label]) / 48 for counts in (NEAR, other)] for label in NEAR}
    for line in lines[2:]:
        assert float(line["acc"]) == pytest.approx(statistics.mean(accs[line["row"]]))
        assert float(line["acc_between_seeds"]) == pytest.approx(statistics.stdev(accs[line["row"]]))
        assert float(line["realized_rate"]) == float(line["rate"])
        pairs = [zip(counts[line["row"]], ALONE["guide"], strict=True) for counts in (NEAR, other)]
        apart = sum(abs(own - guide) for own, guide in itertools.chain(*pairs))  # samples that are right in one row alone
        assert float(line["same_as_guide"]) == pytest.approx(1 - apart / 96)
    gains = [statistics.mean(accs[label]) - sum(ALONE["base"]) / 48 for label in NEAR]
    assert list_areas(areas) == [pytest.approx(gains[0] / 4 + (gains[0] + gains[1]) / 4)]


def test_pairs_stand_in_one_figure_each_with_its_own_base(tmp_path, capsys):
    write_comparison(tmp_path / "one", ALONE | NEAR)
    write_comparison(tmp_path / "two", {"base": [4] * 6, "guide": [8] * 6} | NEAR, pair="acme/Other-Base")
    lines, areas = merge(tmp_path)
    pairs = ["Small-Base + Large", "Other-Base + Large"]
    assert [line["pair"] for line in lines] == [pair for pair in pairs for _ in ALONE | NEAR]
    (first,), (second,) = (list_areas(areas, pair=pair) for pair in pairs)
    assert first > second
    picture, printed = (tmp_path / "merged" / "frontier.svg").read_text(), capsys.readouterr().out
    assert all(f">Acc, {pair}</text>" in picture and f"{pair}\nAreas by" in printed for pair in pairs)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"counts": {"base": [1] * 5, "guide": [8] * 5}}, "differ in problems of takeover_demo"),
        ({"verifier": "math_verify"}, "differ in verifier: takeover -> math_verify"),
        ({"decoding": {"temperature": 1.0}}, "differ in temperature: 0.6 -> 1.0"),
        ({"calibration": "two"}, "differ in calibration prompts"),
        ({"seed": 1, "counts": ALONE | FAR}, "rows differ in seeds: base has [0, 1], near@0.05 has [0]"),
    ],
    ids=["problems", "verifier", "decoding", "prompts", "seeds"],
)
def test_what_cannot_be_compared_is_refused_in_one_line_that_says_why(tmp_path, changed, text):
    packaged, _ = find_calibration("demo")
    for name in ("one", "two"):
        given = {"counts": ALONE | NEAR, "calibration": "one"} | (changed if name == "two" else {})
        write_comparison(tmp_path / name, given.pop("counts"), **given)
        prompts = packaged.prompts | ({"problems": packaged.prompts["problems"][1:]} if name == "two" else {})
        write_calibration(replace(packaged, prompts=prompts), tmp_path / name / f"{name}.json")
    with one_line(ArgumentError, text):
        merge(tmp_path)


def test_after_a_stopped_call_with_another_limit_each_row_has_its_last_results(tmp_path, capsys):
    write_comparison(tmp_path / "one", ALONE | NEAR)
    given = takeover("base", base="acme/Small-Base")
    write_results(tmp_path / "one/base/results", {"takeover_demo": [1] * 12}, run=given, date="2026-01-02T00-00-00")
    assert main(["leaderboard", str(tmp_path / "one"), "--vs", str(tmp_path / "one/base"), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    sizes = {row["model"]: row["tasks"]["takeover_demo"]["problems"] for row in rows}
    assert sizes == dict.fromkeys(ALONE | NEAR, 6) | {"base": 12}


def test_only_folders_of_compare_are_read(tmp_path):
    write_comparison(tmp_path / "one", ALONE | NEAR)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match=r"empty' has no rows.json, which `compare --run_dir` writes"):
        merge(tmp_path, "empty")
    (first, *_) = json.loads((tmp_path / "one" / "rows.json").read_text())
    for rows, text in (({}, "expected a list"), ([1], "expected"), ([{}], "label"), ([first | {"results": [".."]}], "outside")):
        (tmp_path / "empty" / "rows.json").write_text(json.dumps(rows))
        with pytest.raises(TakeoverError, match=text):
            merge(tmp_path, "empty")
    with pytest.raises(ArgumentError, match=r"has no effects.json; expected what `effects --out` wrote"):
        main(["frontier", str(tmp_path / "one"), "--effects", str(tmp_path), "--out", str(tmp_path / "new")])

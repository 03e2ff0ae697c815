"""The table in every format: the same figures, more columns, tasks of another size."""

import csv
import io
import json

import pytest
from helpers.results import takeover, write_results


def test_columns_stand_in_each_cell(tmp_path, board, printed):
    rates = {"takeover_amc23": {"realized_rate": 0.04}, "takeover_aime24": {"realized_rate": 0.1}}
    counts = {"takeover_amc23": [3] * 40, "takeover_aime24": [1] * 30}
    shares = {"acc_boxed": 0.25, "unboxed": 0.3, "no_answer": 0.125, "truncated": 0.5}
    folder = write_results(tmp_path / "guided", counts, run=takeover(per_task=rates), shares=shares)
    row = board(folder)[0]["Small-Base + Guided"]
    for cell, rate in ((row["tasks"]["takeover_amc23"], 0.04), (row["average"], pytest.approx(0.07))):
        assert cell["task_rate"] == rate
        assert {name: cell[name] for name in shares} == shares
    words = [folder, "--format", "md", "--columns"]
    said = printed(*words, "task_rate")
    assert "Acc 37.5 / Pass@8 100.0 / realized rate 4.0" in said and "Acc / Pass@8 / realized rate" in said
    assert "Acc 12.5 / Pass@8 100.0 / realized rate 10.0" in said
    labelled = "with truncated [37.5, 87.5] / Acc of boxes alone 25.0 / read without a box 30.0 / no answer 12.5"
    assert labelled in printed(*words, "truncated", "reading").replace("\\", "")  # Markdown escapes brackets


def test_a_task_of_ones_own_has_the_pass_at_k_of_its_samples(tmp_path, board, printed):
    counts = {"base": [0, 1, 0, 1] * 10, "guided": [3, 2, 3, 1] * 10, "guide": [3, 3, 3, 2] * 10}
    for name, correct in counts.items():
        run = takeover("disagreement" if name == "guided" else name)
        write_results(tmp_path / name, {"own": correct}, run=run, samples=3)
    rows, warnings = board(tmp_path)
    cell = rows["Small-Base + Guided"]["tasks"]["own"]
    assert (cell["k"], cell["pass8"], cell["maj8"], warnings) == (3, None, None, [])
    assert (cell["pass1"], cell["pass2"], cell["pass3"]) == pytest.approx((0.75, 11 / 12, 1.0))
    assert cell["maj3"] == 0.75 and cell["pass3_low"] < 1
    assert rows["Small-Base + Guided"]["recovery"]["pass3"] == pytest.approx(1.0)
    said = printed(tmp_path)
    assert "75.0 / 100.0" in said and "Acc / Pass@3, in %." in said and "Pass@8" not in said
    lines = list(csv.DictReader(io.StringIO(printed(tmp_path, "--format", "csv"))))
    assert float(lines[2]["pass3"]) == 1.0 and lines[2]["pass8"] == ""


def test_markdown_latex_and_csv_have_the_same_figures(results, printed):
    said = {
        name: printed(*(results / run for run in ("base", "guided", "guide")), "--format", name)
        for name in ("json", "md", "latex", "csv")
    }
    row = json.loads(said["json"])["rows"][1]
    figures = [f"{100 * row['average'][name]:.1f}" for name in ("acc", "pass8")]
    assert " / ".join(figures) in said["md"] and " / ".join(figures) in said["latex"]
    lines = [line for line in said["md"].splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1 and len(lines) == 5
    assert said["latex"].count(r"\\") == 4
    assert all(rf"\{rule}rule" in said["latex"] for rule in ("top", "mid", "bottom"))
    averages = [line for line in csv.DictReader(io.StringIO(said["csv"])) if line["task"] == "average"]
    assert float(averages[1]["acc"]) == row["average"]["acc"]
    assert float(averages[1]["recovery_acc"]) == row["recovery"]["acc"]

"""Comparisons with one row: paired by problem, corrected over all, in every format."""

import csv
import io

import pytest
from helpers.results import SIZES, takeover, write_results

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.statistics import holm


def test_differences_are_paired_by_problem(results, board):
    rows, _ = board(results / "base", results / "guided", "--vs", results / "base")
    assert "vs" not in rows["Small-Base"]
    contrasts = rows["Small-Base + Guided"]["vs"]["acc"]
    assert set(contrasts) == {*SIZES, "average"}
    for task in SIZES:
        contrast = contrasts[task]
        assert contrast["how"] == "paired by problem"
        assert contrast["low"] < contrast["difference"] < contrast["high"]
        assert contrast["p_value"] <= contrast["p_holm"] < 0.05


def test_p_values_are_corrected_over_all_that_is_compared(results, board, printed, tmp_path):
    bare = write_results(tmp_path, {task: [4] * size for task, size in SIZES.items()}, run=takeover("early"), logged=False)
    words = [*(results / name for name in ("base", "guided", "random")), bare, "--vs", results / "base"]
    assert "Holm's p-values are over all 16 comparisons." in " ".join(printed(*words).split())
    rows, _ = board(*words[:3], *words[4:])
    compared = [row["vs"] for row in rows.values() if "vs" in row]
    tested = [each for vs in compared for metric in ("acc", "pass8") for each in vs[metric].values()]
    assert len(tested) == 2 * 2 * 4
    assert [each["p_holm"] for each in tested] == pytest.approx(holm([each["p_value"] for each in tested]))
    with pytest.raises(ArgumentError, match="is 0 rows of the table"):
        board(results / "base", "--vs", results / "guided")


def test_csv_has_the_comparison(results, board, printed):
    words = [results / "base", results / "guided", "--vs", results / "base"]
    contrasts = board(*words)[0]["Small-Base + Guided"]["vs"]
    lines = [row for row in csv.DictReader(io.StringIO(printed(*words, "--format", "csv"))) if row["vs"]]
    assert [line["task"] for line in lines] == [*SIZES, "average"] and {line["vs"] for line in lines} == {"Small-Base"}
    for line in lines:
        for metric in ("acc", "pass8"):
            contrast = contrasts[metric][line["task"]]
            for name in ("difference", "low", "high", "p_value", "p_holm"):
                assert float(line[f"vs_{metric}_{name}"]) == contrast[name]

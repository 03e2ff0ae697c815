"""Rows against others: Recovery, its reference and why there is none; differences, paired by problem and corrected over all."""

import csv
import io

import pytest
from helpers.results import SIZES, takeover, write_results

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.statistics import holm


def test_recovery_is_against_the_thinking_model_else_the_guide(results, board):
    runs = [results / name for name in ("base", "guided", "guide")]
    by_guide, _ = board(*runs)
    by_thinking, _ = board(*runs, "--thinking", results / "thinking")
    for rows, reference in ((by_guide, "Large (guide)"), (by_thinking, "Small (thinking)")):
        row = rows["Small-Base + Guided"]
        base, guided, thinking = (rows[name]["average"]["acc"] for name in ("Small-Base", "Small-Base + Guided", reference))
        assert row["reference"] == reference
        assert row["recovery"]["acc"] == pytest.approx((guided - base) / (thinking - base))
        assert row["recovery"]["acc_low"] < row["recovery"]["acc"] < row["recovery"]["acc_high"]
    assert by_guide["Small-Base"]["recovery"]["acc"] is None
    assert by_guide["Small-Base"]["recovery"]["acc_why"] == "a base row recovers nothing"


def test_of_several_seeds_and_templates_base_and_reference_are_the_rows_own(tmp_path, board):
    counts = {"base": [0, 1, 2, 1], "disagreement": [5, 4, 6, 5], "guide": [8, 7, 8, 8]}
    for seed in (0, 1):
        for template in (None, "abc"):
            for policy, correct in counts.items():
                more = seed + 2 * bool(template) if policy == "base" else 0
                rows = {"takeover_amc23": [count + more for count in correct] * 10}
                folder = tmp_path / f"{policy}-{seed}-{template}"
                write_results(folder, rows, run=takeover(policy, seed=seed), chat_template_sha=template)
    rows, _ = board(tmp_path)
    for name, row in rows.items():
        if row["kind"] == "guided":
            own = name.replace("Small-Base + Guided", "Large (guide)")
            base = rows[name.replace(" + Guided", "")]
            accuracies = [each["average"]["acc"] for each in (row, base, rows[own])]
            assert row["reference"] == own
            assert row["recovery"]["acc"] == pytest.approx((accuracies[0] - accuracies[1]) / (accuracies[2] - accuracies[1]))


_BLANK = [("guided guide", "", "no row is the base alone"), ("base guided", "", "no reference")]


@pytest.mark.parametrize(("names", "thinking", "why"), [*_BLANK, ("base guided", "random", "beyond noise")])
def test_recovery_is_blank_with_the_reason(results, board, names, thinking, why):
    words = ["--thinking", results / thinking] if thinking else []
    recovery = board(*(results / name for name in names.split()), *words)[0]["Small-Base + Guided"]["recovery"]
    assert recovery["pass8"] is None and why in recovery["pass8_why"]


def test_a_recovery_with_a_wide_interval_is_empty_and_says_why(tmp_path, board, printed):
    base = [0, 8, 3, 5, 2, 6, 1, 7, 4, 4]
    gains = {"base": [0] * 10, "guided": [3, -1, 4, -2, 3, -3, 4, -1, 2, 1], "guide": [2, 0, 1, 2, 3, 1, 3, 0, 2, 1]}
    for name, gained in gains.items():
        counts = {"takeover_amc23": [one + more for one, more in zip(base, gained, strict=True)]}
        write_results(tmp_path / name, counts, run=takeover("disagreement" if name == "guided" else name))
    recovery = board(tmp_path)[0]["Small-Base + Guided"]["recovery"]
    assert (recovery["acc"], recovery["acc_low"], recovery["acc_high"]) == (None, None, None)
    said = " ".join(printed(tmp_path).split())
    assert f"Small-Base + Guided (Acc): {recovery['acc_why']}." in said and "wider than 100 points" in said


def test_without_samples_there_are_means_and_a_line_that_says_what_cannot_be_computed(board, tmp_path):
    for policy, counts in (("base", [1, 2]), ("disagreement", [4, 5]), ("guide", [7, 8])):
        write_results(tmp_path / policy, {"takeover_amc23": counts * 20}, run=takeover(policy), logged=False)
    rows, warnings = board(tmp_path)
    row = rows["Small-Base + Guided"]
    cell, recovery = row["tasks"]["takeover_amc23"], row["recovery"]
    assert (cell["acc"], cell["acc_low"], cell["acc_high"]) == (0.5625, None, None)
    assert recovery["acc"] == pytest.approx(0.5) and recovery["acc_low"] is None
    assert "--log_samples" in recovery["acc_why"] and any("no samples of" in line for line in warnings)


@pytest.mark.parametrize(("pretrained", "count", "said"), [
    ("acme/Small", 600_000_000, None), ("acme/Small", None, None),
    ("acme/Small", 1_700_000_000, "Small (thinking), which has 1.7 B parameters, Small-Base 0.6 B"),
    ("acme/Think-4B", None, "Think-4B (thinking), which has 4 B parameters"),
    ("acme/Other", None, "Other (thinking), and nothing says that it has the size of Small-Base"),
])  # fmt: skip
def test_a_reference_of_another_size_is_a_warning(results, tmp_path, board, pretrained, count, said):
    counts, config = {task: [5] * size for task, size in SIZES.items()}, {"model_num_parameters": count} if count else {}
    write_results(tmp_path / "thinking", counts, model="hf", model_args={"pretrained": pretrained}, config=config)
    _, warnings = board(results / "base", results / "guided", "--thinking", tmp_path / "thinking")
    lines = [line for line in warnings if line.startswith("Recovery is against")]
    assert lines == [] if said is None else len(lines) == 1 and said in lines[0]


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

"""The table: rows and cells, formats, and rows against others by Recovery and paired differences."""

import csv
import io
import itertools
import json
from functools import partial

import numpy as np
import pytest
from helpers.results import SIZES, takeover, write_results

from lm_eval_takeover.calibration.files import packaged_calibrations
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.leaderboard.rows import build_board
from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.results.statistics import holm

SHIFTS = {"base": -0.4, "random": -0.35, "guided": -0.05, "thinking": -0.1, "guide": 0.2}


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """The thinking one is stock `hf` with another temperature."""
    folder, generator = tmp_path_factory.mktemp("results"), np.random.default_rng(0)
    chances = {task: generator.beta(0.6, 0.6, count) for task, count in SIZES.items()}
    for name, shift in SHIFTS.items():
        counts = {t: generator.binomial(8, np.clip(p + shift, 0, 1)).tolist() for t, p in chances.items()}
        if name == "thinking":
            args = {"pretrained": "acme/Small", "enable_thinking": True}
            written = {"model": "hf", "model_args": args, "decoding": {"temperature": 0.7}}
            write_results(folder / name, counts, **written, config={"model_num_parameters": 600_000_000})
        else:
            policy = "disagreement" if name == "guided" else name
            write_results(folder / name, counts, run=takeover(policy, parameters={"base": 600_000_000}))
    return folder


@pytest.fixture
def printed(printed):
    """What `leaderboard` prints with these words."""
    return partial(printed, "leaderboard")


@pytest.fixture
def board(answered):
    """`(rows by name, warnings)`."""

    def read(*words):
        _, content = answered("leaderboard", *words)
        return {row["model"]: row for row in content["rows"]}, content["warnings"]

    return read


GUIDED = "Small-Base + Guided"


def test_same_as_guide_compares_samples_of_other_places_so_that_a_copy_is_as_much_as_the_guide_is(tmp_path, board, printed):
    """Samples have two texts, right and wrong: a pair is equal where both are right, or both wrong."""
    counts = {"guide": [8, 4], "base": [4, 0], "disagreement": [8, 4], "random": [4, 4]}
    for name, correct in counts.items():
        write_results(tmp_path / name, {"takeover_amc23": correct}, run=takeover(name, seed=int(name == "random")))
    rows, _ = board(*(tmp_path / name for name in counts))
    same = {row["kind"]: row["average"]["same_as_guide"] for row in rows.values()}
    # Of 56 pairs of two places: all and 24, half and 28, all and 24.
    assert same == {"guide": pytest.approx(80 / 112), "base": pytest.approx(0.5), "guided": same["guide"],
                    "random": pytest.approx(52 / 112)}  # fmt: skip
    table = printed(*(tmp_path / name for name in counts), "--columns", "same_as_guide", "--format", "csv")
    assert "same_as_guide" in table.splitlines()[0] and "acc_own" not in table
    assert "Same as guide" in printed(tmp_path, "--columns", "same_as_guide")


def test_where_no_two_samples_of_the_guide_are_equal_the_column_is_empty_and_says_why(tmp_path, board, printed):
    for name in ("base", "guide", "disagreement"):
        write_results(tmp_path / name, {"takeover_amc23": [1, 0]}, samples=1, run=takeover(name))
    rows, _ = board(tmp_path)
    assert {row["average"]["same_as_guide"] for row in rows.values()} == {None}
    assert "No column Same as guide: two samples of the guide never have" in printed(tmp_path, "--columns", "same_as_guide")


def test_rows_come_in_the_order_of_table_3_with_recovery_against_the_thinking_model_else_the_guide(results, board):
    runs = [results / name for name in ("guide", "guided", "base", "random")]
    by_guide, same = board(*runs)
    by_thinking, differ = board(*runs, "--thinking", results / "thinking")
    assert [(name, row["kind"], row["realized_rate"]) for name, row in by_thinking.items()] == [
        ("Small-Base", "base", 0.0), (GUIDED, "guided", 0.05), ("Small-Base + Random", "random", 0.05),
        ("Small (thinking)", "thinking", None), ("Large (guide)", "guide", 1.0),
    ]  # fmt: skip
    for rows, reference in ((by_guide, "Large (guide)"), (by_thinking, "Small (thinking)")):
        row = rows[GUIDED]
        base, guided, thinking = (rows[name]["average"]["acc"] for name in ("Small-Base", GUIDED, reference))
        assert row["reference"] == reference
        assert row["recovery"]["acc"] == pytest.approx((guided - base) / (thinking - base))
        assert row["recovery"]["acc_low"] < row["recovery"]["acc"] < row["recovery"]["acc_high"]
    assert by_guide["Small-Base"]["recovery"]["acc"] is None
    assert by_guide["Small-Base"]["recovery"]["acc_why"] == "a base row recovers nothing"
    (line,) = [line for line in differ if "temperature" in line]  # once for all tasks
    assert line.startswith("rows differ in temperature: 0.7 (Small (thinking)), 0.6 (the rest) (amc23, aime24") and same == []


def test_cells_have_intervals_averages_leave_gpqa_out_and_a_row_that_lacks_a_task_has_none(results, board, tmp_path):
    row = board(results / "base")[0]["Small-Base"]
    sizes = {task: (cell["problems"], cell["samples"]) for task, cell in row["tasks"].items()}
    assert sizes == {task: (count, 8) for task, count in SIZES.items()}
    cells = [row["tasks"][task] for task in ("takeover_amc23", "takeover_aime24")]
    assert row["average"]["acc"] == pytest.approx(sum(cell["acc"] for cell in cells) / 2)
    for cell in (*row["tasks"].values(), row["average"]):
        assert 0 <= cell["acc_low"] < cell["acc"] < cell["acc_high"] <= cell["pass8_high"] <= 1
    write_results(tmp_path, {"takeover_amc23": [4] * 40}, run=takeover("base"))
    row = board(results / "guided", tmp_path)[0]["Small-Base"]
    assert (row["average"], row["average_why"]) == (None, "without takeover_aime24")


@pytest.mark.parametrize(("given", "realized", "missed"), [
    ({"target_rate": 0.05}, 0.0706, True), ({"target_rate": 0.05}, 0.0594, False), ({"rate": 0.2}, 0.155, True),
    ({"spike_ratio": 0.03}, 0.2, False),  # no rate of the run
])  # fmt: skip
def test_a_missed_rate_is_marked_and_explained(tmp_path, board, printed, given, realized, missed):
    run = takeover("random" if "rate" in given else "disagreement", spike_ratio=None, realized_rate=realized, tokens=10_000)
    write_results(tmp_path, {"takeover_amc23": [4] * 40}, run=run | {"rate": None} | given)
    rows, warnings = board(tmp_path)
    ((name, row),), asked = rows.items(), next(iter(given.values()))
    assert (row["nominal"], row["missed_rate"]) == (asked, asked if missed else None)
    line = f"{name}: a rate of {asked:.1%} was asked for, and {realized:.1%} was realized"
    assert warnings == ([line] if missed else [])
    assert (f"{realized:.1%} †" in printed(tmp_path)) == ("† off the rate that was" in printed(tmp_path)) == missed


def test_published_rows_bear_their_tables_and_the_names_of_the_source(printed):
    rows = json.loads(printed("--published", "--format", "json"))["rows"]
    assert {row["source"] for row in rows} == {f"published, Table {number}" for number in (3, 7, 8, 9, 10, 11, 12)}
    first = rows[1]
    assert first["model"] == "+ Guided (~4 %)" and first["realized_rate"] is None
    assert first["tasks"]["Math500"]["acc"] == 0.446 and first["tasks"]["Math500"]["acc_low"] is None
    recoveries = [row["recovery"] for row in rows if row["source"] == "published, Table 8"]
    assert [(r["acc"], r["pass8"]) for r in recoveries] == [(0.53, 0.91), (1.3, 1.57), (1.4, 1.37), (1.72, 1.56)]
    assert first["recovery"]["acc"] is None and "lost" in first["recovery"]["acc_why"]


def test_what_cannot_be_shown_or_read_is_one_error(tmp_path):
    folder = write_results(tmp_path / "x", {"sums": [0, 1]}, model="hf", model_args="pretrained=acme/x")
    (path,) = folder.glob("results_*.json")
    cases = [({"bleu,none": 27.5}, "'bleu' is 27.5, expected a share"), ({"bypass,none": 9}, "has no metrics; run lm_eval")]
    for result, said in cases:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"results": {"sums": result}}))
        with pytest.raises(ArgumentError, match=f"nothing can be shown of .*{said}"):
            main(["leaderboard", str(folder)])
    path.unlink()
    with pytest.raises(ResultsError, match=r"demo.json' is no results file of lm_eval; give results_"):
        main(["leaderboard", str(packaged_calibrations()["demo"])])
    for name in ("cut", "empty"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results_2026-01-01T00-00-00.json").write_text("{" if name == "cut" else "")
    with pytest.raises(ResultsError, match=r"/cut/.* is not JSON.*; .*/empty/.*"):
        main(["leaderboard", str(tmp_path)])


def test_logs_of_other_models_say_how_they_are_read(tmp_path, printed):
    """Which metric is Acc, that no identity of ours tells copies from other runs, and one line for all copies."""
    for month in range(1, 5):
        folder = write_results(tmp_path / "x", {"sums": [1, 0]}, samples=1, model="hf", date=f"2026-0{month}-01T00-00-00")
    for path in folder.iterdir():
        path.write_text(path.read_text().replace('"acc', '"exact_match'))
    shown = " ".join(printed(folder).split())
    assert "sums: Acc is its exact_match." in shown and "2 problems x 1 sample." in shown
    assert "record no digest of a run, so runs were told apart by the settings that their files state" in shown
    assert shown.count("left out") == 1 and "so are 2 more such files" in shown


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ({}, {"chat_template_sha": "0a1b2c3d"}, ["(chat_template off)", "(chat_template on (0a1b2c))"]),
        ({"run": {"target_rate": 0.02, "tau": 3.0}}, {"run": {"target_rate": 0.05}}, ["(rate 0.02)", "(rate 0.05)"]),
        ({"run": {"tau": 3.0}}, {}, ["(tau 3.0)", "(tau 1.5)"]),
        ({}, {"run": {"seed": 1, "backend": "vllm"}, "decoding": {"temperature": 1.0}}, ["(seed 0)", "(seed 1)"]),
        ({"run": {"label": "short"}}, {"run": {"label": "long", "seed": 1}}, ["short", "long"]),
        ({"run": {"label": "Small-Base+Large-disagreement"}}, {"run": {"label": "own", "seed": 1}}, [GUIDED, "own"]),
        ({}, {"verifier": "math_verify"}, [GUIDED, f"{GUIDED}, math_verify"]),
    ],
)
def test_a_name_is_the_label_or_what_differs(tmp_path, first, second, names):
    for place, written in enumerate((first, second)):
        run = takeover(**{"seed": 0, **written.get("run", {})})
        write_results(tmp_path / str(place), {"takeover_amc23": [4] * 20}, **{**written, "run": run})
    board = build_board([tmp_path], [], None)
    assert [row.name for row in board.rows] == [f"{GUIDED} {name}" if name[0] == "(" else name for name in names]


def test_more_figures_of_a_task_have_columns_of_their_own(tmp_path, board, printed):
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
    assert "| AMC23 realized rate |" in said and "| 37.5 / 100.0 |" in said and "| 4.0 |" in said
    heading, _, line, *_ = printed(*words, "truncated", "reading").replace("\\", "").splitlines()  # Markdown escapes brackets
    figures = dict(zip(*(each.split(" | ") for each in (heading, line)), strict=True))
    shown = {"with truncated": "[37.5, 87.5]", "Acc of boxes alone": "25.0", "read without a box": "30.0", "no answer": "12.5"}
    assert {f"AMC23 {label}": text for label, text in shown.items()}.items() <= figures.items()


def test_markdown_latex_and_csv_have_the_same_figures(results, board, printed):
    said = {
        name: printed(*(results / run for run in ("base", "guided", "guide")), "--format", name)
        for name in ("json", "md", "latex", "csv")
    }
    row = json.loads(said["json"])["rows"][1]
    figures = [f"{100 * row['average'][name]:.1f}" for name in ("acc", "pass8")]
    assert " / ".join(figures) in said["md"] and " & ".join(figures) in said["latex"]
    assert "AMC23 Acc & AMC23 Pass@8 & AIME24 Acc" in said["latex"]
    spread = printed(results / "base", "--format", "latex", "--columns", "intervals").splitlines()
    (line,), heads = [row.split(" & ") for row in spread if row.startswith("Small-Base")], spread[3].split(" & ")
    cell = board(results / "base")[0]["Small-Base"]["tasks"]["takeover_amc23"]
    assert heads[:6] == ["Model", "Rate", "AMC23 Acc", r"95 \%", "AMC23 Pass@8", r"95 \%"]
    assert line[2:4] == [f"{100 * cell['acc']:.1f}", f"{100 * cell['acc_low']:.1f}--{100 * cell['acc_high']:.1f}"]
    averages = [line for line in csv.DictReader(io.StringIO(said["csv"])) if line["task"] == "average"]
    assert float(averages[1]["acc"]) == row["average"]["acc"]
    assert float(averages[1]["recovery_acc"]) == row["recovery"]["acc"]


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


def test_recovery_is_blank_with_the_reason(results, board):
    base, guided, guide, random = (results / name for name in ("base", "guided", "guide", "random"))
    cases = [([guided, guide], "no row is the base alone"), ([base, guided], "no reference")]
    for words, why in [*cases, ([base, guided, "--thinking", random], "beyond noise")]:
        recovery = board(*words)[0][GUIDED]["recovery"]
        assert recovery["pass8"] is None and why in recovery["pass8_why"]


def test_a_recovery_with_a_wide_interval_bears_a_mark_and_its_interval(tmp_path, board, printed):
    """It widens as Recovery grows, so leaving it out would remove the best rows."""
    base = [0, 8, 3, 5, 2, 6, 1, 7, 4, 4] * 2
    gains = {"base": [0] * 10, "guided": [3, -1, 4, -2, 3, -3, 4, -1, 2, 1], "guide": [2, 0, 1, 2, 3, 1, 3, 0, 2, 1]}
    gains = {name: gained * 2 for name, gained in gains.items()}
    for name, gained in gains.items():
        counts = {"takeover_amc23": [one + more for one, more in zip(base, gained, strict=True)]}
        write_results(tmp_path / name, counts, run=takeover("disagreement" if name == "guided" else name))
    recovery = board(tmp_path)[0]["Small-Base + Guided"]["recovery"]
    assert recovery["acc_high"] - recovery["acc_low"] > 1 and "wider than 100 points" in recovery["acc_why"]
    shown = f"{recovery['acc']:.0%} ‡ ({recovery['acc_low']:z.0%} to {recovery['acc_high']:z.0%})"
    said = printed(tmp_path, "--format", "md")
    assert shown in said and f"‡ {recovery['acc_why']}." in said and "no Recovery: the interval" not in said


def test_without_samples_there_are_means_and_a_line_that_says_what_cannot_be_computed(board, tmp_path):
    for policy, counts in (("base", [1, 2]), ("disagreement", [4, 5]), ("guide", [7, 8])):
        write_results(tmp_path / policy, {"takeover_amc23": counts * 20}, run=takeover(policy), logged=False)
    rows, warnings = board(tmp_path)
    row = rows["Small-Base + Guided"]
    cell, recovery = row["tasks"]["takeover_amc23"], row["recovery"]
    assert (cell["acc"], cell["acc_low"], cell["acc_high"]) == (0.5625, None, None)
    assert recovery["acc"] == pytest.approx(0.5) and recovery["acc_low"] is None
    assert "--log_samples" in recovery["acc_why"] and any("no samples of" in line for line in warnings)


def test_differences_are_paired_by_problem_corrected_over_all_of_them_and_stand_in_csv(results, board, printed, tmp_path):
    bare = write_results(tmp_path, {task: [4] * size for task, size in SIZES.items()}, run=takeover("early"), logged=False)
    words = [*(results / name for name in ("base", "guided", "random")), "--vs", results / "base"]
    assert "Holm's p-values are over all 16 comparisons." in " ".join(printed(bare, *words).split())
    rows, _ = board(*words)
    assert "vs" not in rows["Small-Base"]
    tested = [each for row in rows.values() if "vs" in row for name in ("acc", "pass8") for each in row["vs"][name].values()]
    assert [each["p_holm"] for each in tested] == pytest.approx(holm([each["p_value"] for each in tested]))
    contrasts = rows[GUIDED]["vs"]
    for contrast in (contrasts["acc"][task] for task in SIZES):
        assert contrast["how"] == "paired by problem"
        assert contrast["low"] < contrast["difference"] < contrast["high"] and contrast["p_value"] <= contrast["p_holm"] < 0.05
    lines = [row for row in csv.DictReader(io.StringIO(printed(*words, "--format", "csv"))) if row["model"] == GUIDED]
    assert [line["task"] for line in lines] == [*SIZES, "average"] and {line["vs"] for line in lines} == {"Small-Base"}
    for line, metric in itertools.product(lines, ("acc", "pass8")):
        contrast = contrasts[metric].pop(line["task"])
        for name in ("difference", "low", "high", "p_value", "p_holm"):
            assert float(line[f"vs_{metric}_{name}"]) == contrast[name]
    assert contrasts["acc"] == contrasts["pass8"] == {}
    for versus, said in ((results / "guided", "is 0 rows of the table"), ("guidd", "'guidd' is neither a folder nor a row of")):
        with pytest.raises(ArgumentError, match=said):
            board(results / "base", "--vs", versus)

"""Rows of the table: their names, order, cells, averages, warnings, and the paper's own."""

import json

import pytest
from helpers.results import SIZES, takeover, write_results

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.leaderboard.rows import build_board
from lm_eval_takeover.errors import ArgumentError, ResultsError

GUIDED = "Small-Base + Guided"


def test_rows_come_in_the_order_of_table_3_with_kinds_and_rates(results, board):
    names = ("guide", "guided", "base", "random")
    rows, _ = board(*(results / name for name in names), "--thinking", results / "thinking")
    assert [(name, row["kind"], row["realized_rate"]) for name, row in rows.items()] == [
        ("Small-Base", "base", 0.0),
        ("Small-Base + Guided", "guided", 0.05),
        ("Small-Base + Random", "random", 0.05),
        ("Small (thinking)", "thinking", None),
        ("Large (guide)", "guide", 1.0),
    ]
    assert all(row["source"] == "measured" for row in rows.values())


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


def test_what_differs_between_rows_is_said_once_for_all_tasks(results, board):
    names = ("base", "guided", "guide")
    _, warnings = board(*(results / name for name in names), "--thinking", results / "thinking")
    (line,) = [line for line in warnings if "temperature" in line]
    assert line.startswith("rows differ in temperature: 0.7 (Small (thinking)), 0.6 (the rest) (amc23, aime24")
    assert board(results / "base", results / "guided")[1] == []


@pytest.mark.parametrize(("given", "realized", "missed"), [
    ({"target_rate": 0.05}, 0.0706, True), ({"target_rate": 0.05}, 0.0594, False), ({"target_rate": 0.2}, 0.235, False),
    ({"rate": 0.2}, 0.155, True), ({"target_rate": 0.05, "rate": 0.062}, 0.062, True),  # solved for the target
    ({"spike_ratio": 0.03}, 0.2, False),  # no rate of the run
])  # fmt: skip
def test_a_missed_rate_is_marked_and_explained(tmp_path, board, printed, given, realized, missed):
    run = takeover("random" if "rate" in given else "disagreement", spike_ratio=None, realized_rate=realized, tokens=10_000)
    write_results(tmp_path, {"takeover_amc23": [4] * 40}, run=run | {"rate": None} | given)
    rows, warnings = board(tmp_path)
    ((name, row),), asked = rows.items(), next(iter(given.values()))
    assert (row["nominal"], row["missed_rate"]) == (asked, asked if missed else None)
    line = f"{name}: {asked:.1%} of the tokens were to be taken over, and {realized:.1%} were"
    assert warnings == ([line] if missed else [])
    assert (f"{realized:.1%} †" in printed(tmp_path)) == missed
    assert ("† off the rate that was asked for" in printed(tmp_path)) == missed


def test_published_rows_bear_their_tables_and_the_names_of_the_source(printed):
    rows = json.loads(printed("--published", "--format", "json"))["rows"]
    assert {row["source"] for row in rows} == {f"published, Table {number}" for number in (3, 7, 8, 9, 10, 11, 12)}
    first = rows[1]
    assert first["model"] == "+ Guided (~4 %)" and first["realized_rate"] is None
    assert rows[5]["model"] == "+ Guided (spike ratio lost in print)"
    assert first["tasks"]["Math500"]["acc"] == 0.446 and first["tasks"]["Math500"]["acc_low"] is None
    assert (first["average"]["acc"], first["average"]["pass8"]) == (0.291, 0.614)
    recoveries = [row["recovery"] for row in rows if row["source"] == "published, Table 8"]
    assert [(r["acc"], r["pass8"]) for r in recoveries] == [(0.53, 0.91), (1.3, 1.57), (1.4, 1.37), (1.72, 1.56)]
    assert first["recovery"]["acc"] is None and "lost" in first["recovery"]["acc_why"]


@pytest.mark.parametrize(("result", "said"), [
    ({"bleu,none": 27.5}, "metric 'bleu' is 27.5, expected a share"),
    ({"bypass,none": 999}, "this run has no metrics; run lm_eval without --predict_only"),
])  # fmt: skip
def test_what_cannot_be_shown_is_a_line(tmp_path, result, said):
    folder = write_results(tmp_path, {"sums": [0, 1]}, model="hf", model_args="pretrained=acme/x")
    (path,) = folder.glob("results_*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"results": {"sums": result}}))
    with pytest.raises(ArgumentError, match=f"nothing can be shown of .*{said}"):
        main(["leaderboard", str(tmp_path)])


def test_all_files_that_cannot_be_read_are_one_error_or_left_out_by_name(tmp_path, capsys):
    write_results(tmp_path / "good", {"takeover_amc23": [8, 0]}, run=takeover())
    for name in ("cut", "empty"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results_2026-01-01T00-00-00.json").write_text("{" if name == "cut" else "")
    with pytest.raises(ResultsError, match=r"/cut/.* is not JSON.*; .*/empty/.*; --skip_unreadable leaves out what"):
        main(["leaderboard", str(tmp_path)])
    assert main(["leaderboard", str(tmp_path), "--skip_unreadable"]) == 0
    printed = capsys.readouterr().out
    assert "50.0" in printed and printed.count("left out:") == 2


def test_logs_of_other_models_say_how_they_are_read(tmp_path, printed):
    """Which metric is Acc, that no identity of ours tells copies from other runs, and one line for all copies."""
    for month in range(1, 5):
        folder = write_results(tmp_path / "x", {"sums": [1, 0]}, samples=1, model="hf", date=f"2026-0{month}-01T00-00-00")
    for path in folder.iterdir():
        path.write_text(path.read_text().replace('"acc', '"exact_match'))
    shown = " ".join(printed(folder).split())
    assert "sums: Acc is its exact_match." in shown and "2 problems x 1 sample." in shown
    assert "these logs have no identity of ours, so they are matched by what their files say" in shown
    assert shown.count("left out") == 1 and "so are 2 more copies with an older run or fewer problems" in shown


@pytest.mark.parametrize(
    ("first", "second", "names", "left_out"),
    [
        ({}, {"run": {"seed": 1}}, ["(seed 0)", "(seed 1)"], []),
        ({}, {"chat_template_sha": "0a1b2c3d"}, ["(chat_template off)", "(chat_template on (0a1b2c))"], []),
        ({"run": {"target_rate": 0.02, "tau": 3.0}}, {"run": {"target_rate": 0.05}}, ["(rate 0.02)", "(rate 0.05)"], []),
        ({"run": {"tau": 3.0}}, {}, ["(tau 3.0)", "(tau 1.5)"], []),
        (
            {},
            {"run": {"seed": 1, "backend": "vllm"}, "decoding": {"temperature": 1.0}},
            ["(seed 0)", "(seed 1)"],
            ["(seed 0): backend hf, temperature 0.6", "(seed 1): backend vllm, temperature 1.0"],
        ),
        ({"run": {"label": "short"}}, {"run": {"label": "long", "seed": 1}}, ["short", "long"], []),
        ({"run": {"label": "Small-Base+Large-disagreement"}}, {"run": {"label": "own", "seed": 1}}, [GUIDED, "own"], []),
        ({}, {"verifier": "math_verify"}, [GUIDED, f"{GUIDED}, math_verify"], []),
    ],
    ids=["seed", "template", "rate", "tau alone", "more", "labels", "a label that every such run has", "verifier"],
)
def test_a_name_is_the_label_or_what_differs_and_the_rest_is_a_warning(tmp_path, first, second, names, left_out):
    for place, written in enumerate((first, second)):
        run = takeover(**{"seed": 0, **written.get("run", {})})
        write_results(tmp_path / str(place), {"takeover_amc23": [4] * 20}, **{**written, "run": run})
    board = build_board([tmp_path], [], None)
    assert [row.name for row in board.rows] == [f"{GUIDED} {name}" if name[0] == "(" else name for name in names]
    lines = [line for line in board.warnings if line.startswith(f"{GUIDED} (seed")]
    assert lines == [f"{GUIDED} {line}" for line in left_out]

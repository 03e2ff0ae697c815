"""How far the reading of answers can move a gap: a made run whose base writes no box, beside one where both do."""

import json

import pytest
from helpers.results import TASK, takeover, write_results

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.leaderboard.contrasts import Read, bound_refused, describe_bend, read_refused


def build(tmp_path, capsys, base_boxed):
    for policy, correct, boxed in (("base", 2, base_boxed), ("disagreement", 4, 0.5), ("guide", 6, 0.75)):
        shares = {"acc_boxed": min(boxed, correct / 8), "unboxed": 0.0 if boxed else 0.9, "no_answer": 0.1}
        write_results(tmp_path / policy, {TASK: [correct] * 20}, run=takeover(policy), shares=shares)
    main(["leaderboard", str(tmp_path), "--columns", "reading", "--format", "md"])
    printed = capsys.readouterr().out
    main(["leaderboard", str(tmp_path), "--format", "json"])
    return printed, json.loads(capsys.readouterr().out)


def test_a_base_without_boxes_bends_the_ruler(tmp_path, capsys):
    printed, board = build(tmp_path, capsys, base_boxed=0.0)
    line = next(line for line in board["warnings"] if "without a box" in line)
    assert line in printed
    assert line.startswith("90% of the samples of Small-Base are read without a box")
    without = read_refused()[1]
    most = max(bound_refused(row) for row in (Read(0.25, 0.0, 0.9), Read(0.5, 0.5, 0.0)))
    assert f"up to {100 * most:.1f} points" in line
    assert bound_refused(Read(0.25, 0.0, 0.9)) == pytest.approx(0.25 * without / (1 - without))
    guided = next(row for row in board["rows"] if row["kind"] == "guided")
    assert guided["recovery"]["acc_of_boxes_why"] == "a row has no boxes, or does not say"


def test_rows_that_box_alike_are_read_alike(tmp_path, capsys):
    printed, board = build(tmp_path, capsys, base_boxed=0.25)
    assert "are read without a box" not in printed
    guided = next(row for row in board["rows"] if row["kind"] == "guided")
    assert guided["recovery"]["acc_of_boxes"] == pytest.approx((0.5 - 0.25) / (0.75 - 0.25))


def test_ten_points_are_the_limit():
    assert describe_bend({"a": Read(0.5, 0.4, 0.10), "b": Read(0.5, 0.5, 0.0), "c": None}) is None
    assert describe_bend({"a": Read(0.5, 0.4, 0.11), "b": Read(0.5, 0.5, 0.0)}) is not None
    assert describe_bend({}) is None

"""How far the reading of answers can move a gap: a made run whose base writes no box, beside one where both do."""

import pytest
from helpers.results import TASK, takeover, write_results

from lm_eval_takeover.results.ruler import bound_refused, describe_bend, read_refused


def build(tmp_path, base_boxed):
    for policy, correct, boxed in (("base", 2, base_boxed), ("disagreement", 4, 0.5), ("guide", 6, 0.75)):
        shares = {"acc_boxed": min(boxed, correct / 8), "unboxed": 0.0 if boxed else 0.9, "no_answer": 0.1}
        write_results(tmp_path / policy, {TASK: [correct] * 20}, run=takeover(policy), shares=shares)
    return tmp_path


def test_a_base_without_boxes_bends_the_ruler(tmp_path, printed, answered):
    _, board = answered("leaderboard", build(tmp_path, base_boxed=0.0))
    line = next(line for line in board["warnings"] if "without a box" in line)
    assert line in printed("leaderboard", tmp_path, "--columns", "reading", "--format", "md")
    assert line.startswith("90% of the samples of Small-Base are read without a box")
    without = read_refused()[1]
    base, guided = {"acc": 0.25, "acc_boxed": 0.0}, {"acc": 0.5, "acc_boxed": 0.5}
    assert f"up to {100 * max(map(bound_refused, (base, guided))):.1f} points" in line
    assert bound_refused(base) == pytest.approx(0.25 * without / (1 - without))
    guided = next(row for row in board["rows"] if row["kind"] == "guided")
    assert guided["recovery"]["acc_of_boxes_why"] == "a row has no boxes, or does not say"


def test_rows_that_box_alike_are_read_alike(tmp_path, printed, answered):
    _, board = answered("leaderboard", build(tmp_path, base_boxed=0.25))
    assert "are read without a box" not in printed("leaderboard", tmp_path, "--columns", "reading", "--format", "md")
    guided = next(row for row in board["rows"] if row["kind"] == "guided")
    assert guided["recovery"]["acc_of_boxes"] == pytest.approx((0.5 - 0.25) / (0.75 - 0.25))


def test_ten_points_are_the_limit():
    one, other = {"acc": 0.5, "acc_boxed": 0.4}, {"acc": 0.5, "acc_boxed": 0.5, "unboxed": 0.0}
    assert describe_bend({"a": one | {"unboxed": 0.10}, "b": other, "c": one}) is None is describe_bend({})
    assert describe_bend({"a": one | {"unboxed": 0.11}, "b": other}) is not None

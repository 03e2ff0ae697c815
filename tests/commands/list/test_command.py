"""`list`: names with where they come from."""

import json

from lm_eval_takeover.cli import main


def test_every_kind_of_name_is_listed(capsys):
    assert main(["list", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    names = {kind: [row["name"] for row in rows if row["kind"] == kind] for kind in {row["kind"] for row in rows}}
    assert {"ce", "rkl", "js", "entropy"} <= set(names["score"])
    assert {"disagreement", "random", "early", "base", "guide"} <= set(names["policy"])
    assert "demo" in names["calibration"] and "takeover_demo" in names["task"] and "takeover_paper" in names["group"]
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(row["name"] in printed for row in rows) and max(map(len, printed.splitlines())) <= 80

"""Baselines: what they hold, several seeds in one, what is refused."""

import json

import numpy as np
import pytest
from helpers.results import TASK, draw_counts, takeover, write_results

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.regress.baseline import read_baseline
from lm_eval_takeover.errors import ArgumentError, ResultsError


def test_a_baseline_is_small_and_edits_of_it_are_noticed(check):
    path = check.folder / "b.json"
    assert path.stat().st_size < 100 * 300
    task = read_baseline(path).tasks[TASK]
    assert np.array_equal(task.problems.values["acc"] * 8, draw_counts(1))
    assert np.array_equal(task.problems.values["pass@8"], np.array(draw_counts(1)) > 0)
    content = json.loads(path.read_text())
    content["tasks"][TASK]["runs"][0]["counts"]["acc"][0] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(ResultsError, match="field 'checksum' does not agree with the content"):
        read_baseline(path)
    path.write_text('{"schema": 1}')
    with pytest.raises(ResultsError, match="field 'schema' is 1, expected 2"):
        read_baseline(path)
    with pytest.raises(ResultsError, match="does not exist; write it from a good run with --update"):
        read_baseline(check.folder / "none.json")
    folder = write_results(check.folder / "means", {TASK: draw_counts(1)}, run=takeover(), logged=False)
    with pytest.raises(ResultsError, match="run with --log_samples"):
        main(["regress", str(folder), "--baseline", str(check.folder / "b.json")])


def test_a_baseline_of_several_seeds_is_their_mean(tmp_path, regress, capsys):
    folders = [write_results(tmp_path / str(s), {TASK: draw_counts(s)}, run=takeover(seed=s)) for s in (1, 2, 3)]
    one, three = str(tmp_path / "one.json"), str(tmp_path / "three.json")
    main(["regress", str(folders[0]), "--baseline", one, "--update"])
    main(["regress", *map(str, folders), str(folders[1]), "--baseline", three, "--update"])  # the same texts count once
    assert "3 runs, takeover_math500 (300 problems)" in capsys.readouterr().out
    values = read_baseline(tmp_path / "three.json").tasks[TASK].problems.values
    runs = np.array([draw_counts(seed) for seed in (1, 2, 3)])
    assert np.allclose(values["acc"], runs.mean(axis=0) / 8)
    assert np.allclose(values["pass@8"], (runs > 0).mean(axis=0))
    now = write_results(tmp_path / "now", {TASK: draw_counts(4)}, run=takeover(seed=4))
    tasks = [regress(now, "--baseline", file)[1]["tasks"][TASK] for file in (one, three)]
    widths = [task["high"] - task["low"] for task in tasks]
    assert widths[1] == pytest.approx(widths[0] * ((1 + 1 / 3) / 2) ** 0.5, rel=0.1)
    other = write_results(tmp_path / "other", {TASK: draw_counts(5)}, run=takeover(tau=9.0, seed=5))
    with pytest.raises(ArgumentError, match=r"is not another seed of .*tau: 1.5 -> 9.0"):
        main(["regress", str(folders[0]), str(other), "--baseline", one, "--update"])


def test_recovery_needs_base_and_reference_with_the_same_problems(check):
    with pytest.raises(ResultsError, match="write it again with --update --base RESULTS --reference RESULTS"):
        check({TASK: draw_counts(2)}, "--metric", "recovery")
    folder = str(write_results(check.folder / "short", {TASK: draw_counts(1, size=20)}, run=takeover("base")))
    words = ["regress", str(check.folder / "good"), "--baseline", str(check.folder / "c.json"), "--update"]
    with pytest.raises(ResultsError, match="has not the problems and samples of takeover_math500"):
        main([*words, "--base", folder, "--reference", folder])

"""Histories: runs against one baseline share one error rate; a file that was cut off goes on."""

import json

import pytest
from helpers.results import TASK, draw_counts

from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import ResultsError


@pytest.fixture
def run(check):
    """Compares the run of a seed, with a history."""
    check.history = check.folder / "h" / "history.jsonl"

    def run(seed, *words):
        words = ["--max_drop", "0.03", "--history", str(check.history), *words]
        return check({TASK: draw_counts(seed, -0.08)}, *words)[1]["tasks"][TASK]

    run.history = check.history
    return run


def test_runs_in_a_history_share_one_error_rate(check, run, capsys):
    alone, first = check({TASK: draw_counts(2, -0.08)}, "--max_drop", "0.03")[1]["tasks"][TASK], run(2)
    assert alone["p_holm"] < first["p_holm"] < 30 * alone["p_holm"]
    assert (alone["low"], alone["high"]) == (first["low"], first["high"])
    assert run(2, "--runs", "1")["p_holm"] == alone["p_holm"]  # the same texts count once


def test_the_number_of_runs_is_said(check, run, capsys):
    run(2)
    words = ["regress", str(check.folder / "good"), "--baseline", str(check.folder / "b.json")]
    words += ["--history", str(run.history)]
    main([*words, "--runs", "1"])
    assert "2 runs against this baseline, 1 were planned" in capsys.readouterr().err
    main(words)
    assert "run 2 of 30 against this baseline" in capsys.readouterr().err
    assert len(run.history.read_text().splitlines()) == 3
    run.history.write_text("{}")
    with pytest.raises(ResultsError, match=r"history.jsonl', line 1: field 'baseline' is missing"):
        run(2)


@pytest.mark.parametrize(("cut", "counted"), [(1, 2), (40, 1)])
def test_a_line_that_was_cut_off_stays_apart_from_the_next(run, caplog, cut, counted):
    """Without the end of its line an entry counts; without its end it is left out, with a notice at each call."""
    run(2)
    run.history.write_bytes(run.history.read_bytes()[:-cut])
    run(3)
    whole = []
    for line in run.history.read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except json.JSONDecodeError:
            assert cut > 1
    assert len(whole) == counted
    run(4)
    assert ("line 1 is left out: it is not JSON" in caplog.text) == (cut > 1)

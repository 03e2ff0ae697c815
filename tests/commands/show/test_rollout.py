"""One rollout on a terminal: takeovers with what they replaced, and nothing of the text that a terminal would obey."""

import re
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest
from helpers.run_dirs import plant, plant_facts

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.show.rollout import find_sample, mark_takeovers
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.runs.run_reader import read_run_folder


def show(capsys, folder, *options):
    assert main(["show", str(folder), *options]) == 0
    return capsys.readouterr().out


def test_a_terminal_obeys_nothing_of_a_stranger_s_run(demo_runs, tmp_path, capsys):
    folder = shutil.copytree(demo_runs["guided"], tmp_path / "run")
    plant_facts(folder, arguments={"model": "\x1b]0;title\x07"}, takeover={"policy": "\x1b]0;title\x07"})
    plant(folder, "verdicts", answer="\x1b[2J")
    shown = show(capsys, folder)
    assert "\\u001b]0;title" in shown and not {"\x1b", "\x07"} & set(shown)


def test_takeovers_stand_in_brackets_with_what_the_host_would_have_written(demo_runs, capsys):
    run = read_run_folder(demo_runs["guided"])
    one, trace = next((one, table) for one, table in run.read_traces(["chosen_from", "token_id", "host_token_id"])
                      if one.stored.takeovers and one.sample == 2)  # fmt: skip
    text = show(capsys, demo_runs["guided"], "--doc", str(one.doc_id), "--sample", "2")
    rows = zip(*(trace[name].to_pylist() for name in ("chosen_from", "token_id", "host_token_id")), strict=True)
    taken = [(token, host) for writer, token, host in rows if writer == "guide"]
    marks = re.findall(r"\[([^\]|]*)(\|[^\]]*)?\]", text)
    assert len(marks) == len(taken) == one.stored.takeovers
    assert [bool(replaced) for _, replaced in marks] == [token != host for token, host in taken]
    plain = re.sub(r"\[([^\]|]*)(\|[^\]]*)?\]", r"\1", text)
    assert one.stored.text.strip() in plain
    gold = run.prompts["takeover_demo", one.doc_id][0]["answer"]
    assert f"{one.stored.takeovers} takeovers" in text and f"gold: {gold}" in text


def test_answers_of_a_kind_come_with_what_the_gate_saw(demo_runs, tmp_path, capsys):
    """Without a base run, but for --rescued: the base's row of the comparison."""
    run = read_run_folder(shutil.copytree(demo_runs["guided"], tmp_path / "compared" / "guided" / "samples"))
    right = [one for one in run.answered if one.correct]
    printed = show(capsys, tmp_path / "compared", "--right", "--number", "2")
    assert printed.endswith(f"{len(right)} of {len(run.answered)} answers are right; --number N shows more than 2\n")
    assert printed.count("highest that did not fire") == 2 and "correct: " in printed
    gate, told = run.takeover, printed.split("highest that")[0].split(f"tau {run.takeover['tau']:.3f}, ce at each")[1]
    ((_, trace),) = run.read_traces(["chosen_from", "score", "window_mean"], right[:1])
    rows = trace.to_pylist()
    least = [max(gate["tau"], gate["kappa"] * (row["window_mean"] or 0)) for row in rows]
    lines = [f"token {at:,}: {row['score']:.3f} {'>' if row['score'] > edge else '<'} {edge:.3f}"
             for at, (row, edge) in enumerate(zip(rows, least, strict=True))]  # fmt: skip
    taken = [line for row, line in zip(rows, lines, strict=True) if row["chosen_from"] == "guide"]
    assert [line.split("  ")[0] for line in told.splitlines()[1:]] == taken and all(" > " in line for line in taken)
    highest = max((at for at, row in enumerate(rows) if row["chosen_from"] == "base"), key=lambda at: rows[at]["score"])
    assert lines[highest] in printed.split("highest that did not fire, ")[1] and " < " in lines[highest]
    with pytest.raises(ArgumentError, match="--rescued: no row of the base beside"):
        main(["show", str(tmp_path / "compared"), "--rescued"])
    base = read_run_folder(shutil.copytree(demo_runs["base"], tmp_path / "compared" / "base" / "samples"))
    failed = {one.doc_id for one in base.answered} - {one.doc_id for one in base.answered if one.correct}
    rescued = [one for one in right if one.doc_id in failed]
    assert f"{len(rescued)} of {len(run.answered)} answers are rescued" in show(capsys, tmp_path / "compared", "--rescued")


@pytest.mark.parametrize(("words", "hosts", "marked"), [
    (["The", " "], [0, " fox"], "The[ |fox]"),
    (["Sum.", "\n", "Then"], [0, "Then", 0], "Sum.[\\n|Then]\nThen"),
    (["x[0].", "\n", "Then"], [0, "Then", 0], "x[0].⟦\\n|Then⟧\nThen"),
])  # fmt: skip
def test_a_mark_shows_spaces_and_line_breaks_and_is_no_bracket_of_the_answer(words, hosts, marked):
    known = [*words, *filter(None, hosts)]
    columns = {"token_id": [*range(len(words))], "host_token_id": [known.index(host) if host else 0 for host in hosts]}
    trace = pa.table({**columns, "chosen_from": ["base", "guide", "base"][: len(words)]})
    assert mark_takeovers(lambda ids: "".join(known[i] for i in ids), trace, "guide").plain == marked


@pytest.mark.parametrize(("options", "message"), [
    (["--doc", "99"], "--doc 99 is not there; task takeover_demo has 4 from 0 to 3"),
    (["--sample", "9"], "--sample 9 is not there; doc 0 has 0 to 7"),
    (["--task", "x"], "--task 'x' is not in the run, which has takeover_demo"),
])  # fmt: skip
def test_what_is_not_there_is_said(demo_runs, options, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        main(["show", str(demo_runs["guided"]), *options])
    with pytest.raises(ArgumentError, match="takeover_demo has no finished sample"):
        find_sample(replace(read_run_folder(demo_runs["guided"]), answered=[]), None, 0, 0)

"""One rollout on a terminal: takeovers with what they replaced, and nothing of the text that a terminal would obey."""

import re
import shutil
from dataclasses import replace
from functools import partial

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


def test_the_fast_decoder_writes_what_the_run_s_tokenizer_writes(demo_runs):
    run = read_run_folder(demo_runs["guided"])
    texts = [table["token_id"].to_pylist() for _, table in run.read_traces(["token_id"])]
    fast, slow = run.load_decoder(None, {token for text in texts for token in text}), run.load_tokenizer(own_class=True).decode
    assert isinstance(fast, partial) and [fast(text) for text in texts] == [slow(text) for text in texts]
    assert not isinstance(run.load_decoder(None, [10**6]), partial)  # an id that only the slow one may know


def test_a_run_of_one_model_has_no_marks(demo_runs, capsys):
    assert "[" not in show(capsys, demo_runs["guide"], "--doc", "1")


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


def test_a_terminal_obeys_nothing_of_a_stranger_s_run(demo_runs, tmp_path, capsys):
    folder = shutil.copytree(demo_runs["guided"], tmp_path / "run")
    title = "\x1b]0;title\x07"
    plant_facts(folder, arguments={"model": title}, takeover={"policy": title})
    plant(folder, "verdicts", answer="\x1b[2J")
    plant(folder, "samples", text="\x1b[31m")
    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x07" not in shown
    assert "\\u001b]0;title" in shown

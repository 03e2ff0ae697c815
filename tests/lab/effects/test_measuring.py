"""What a single takeover does: measured on the demo, stopped and resumed, and refused; and which positions are chosen."""

import contextlib
import io
import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from helpers.demo_runs import run_demo
from helpers.pairs import edit, look_before_passes
from helpers.printed_numbers import check_numbers
from helpers.read_once import made_once

from lm_eval_takeover.cli import main
from lm_eval_takeover.decoding import lockstep
from lm_eval_takeover.decoding.engine import TransformersBackend
from lm_eval_takeover.demo import problems
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.effects import measuring
from lm_eval_takeover.lab.effects.measuring import Writer
from lm_eval_takeover.lab.effects.positions import Form, Position, choose_evenly, list_candidates
from lm_eval_takeover.lab.measures.effects import AUROC, BY_SCORE, SUMMARY
from lm_eval_takeover.lab.score.scoring import Readers, restore_arguments
from lm_eval_takeover.method.policies import ALONE, BaseAlone
from lm_eval_takeover.method.request import TASK_SAMPLING, Request
from lm_eval_takeover.runs.run_reader import read_run_folder
from lm_eval_takeover.storage.files import Lock, Locked

TABLES = {
    "effects": (
        *("task", "doc_id", "sample", "position", "kind", "host_token_id", "donor_token_id", "score", "inclusion"),
        *("correct_host", "correct_donor", "continuations", "effect", "low", "high", "shrunk"),
    ),
    "effect_by_score": BY_SCORE,
    "effect_summary": SUMMARY,
    "effect_auroc": AUROC,
}


@pytest.fixture(scope="module")
def strict_run(shared_folder):
    """Twelve problems of the demo, guided by a gate that leaves some of the decisions and all synonyms to the base."""
    return made_once(shared_folder / "strict-run", lambda new: run_demo(new, 12, {"tau": 11.0, "kappa": 0.0, "batch_size": 96}))


@pytest.fixture(scope="module")
def measured(strict_run, shared_folder):
    """Takeovers and controls of that run, four continuations by the base behind each token; `printed.txt` is what was said."""

    def make(new):
        size = ["--takeovers", "20", "--controls", "10", "--continuations", "4", "--batch_size", "180"]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert main(["effects", str(strict_run), "--out", str(new), *size]) == 0
        (new / "printed.txt").write_text(said.getvalue())

    return made_once(shared_folder / "strict-effects", make)


def measure(run, out, *more):
    return main(["effects", str(run), "--out", str(out), "--batch_size", "64", *more])


def test_writes_tables_and_figures(measured):
    for name, columns in TABLES.items():
        table = pl.read_csv(measured / f"{name}.csv")
        assert tuple(table.columns)[: len(columns)] == columns
        assert len(table) == len(json.loads((measured / f"{name}.json").read_text()))
        assert (measured / f"{name}.svg").read_text().startswith("<?xml")
    shown = [json.loads((measured / f"{name}.json").read_text()) for name in ("effect_summary", "effect_auroc")]
    check_numbers((measured / "printed.txt").read_text(), shown, least=20)
    effects = pl.read_csv(measured / "effects.csv")
    assert effects["kind"].value_counts().sort("kind").rows() == [("control", 10), ("takeover", 20)]
    assert (effects["host_token_id"] != effects["donor_token_id"]).all()
    assert (effects["score"] - effects["ce"]).abs().max() < 1e-3
    shares = (effects["correct_donor"] - effects["correct_host"]) / effects["continuations"]
    assert effects["effect"].to_list() == pytest.approx(shares.to_list())
    for _, group in effects.group_by("kind"):  # single effects are drawn together, their mean stays
        means = [np.average(group[name], weights=1 / group["inclusion"]) for name in ("effect", "shrunk")]
        assert means[0] == pytest.approx(means[1], abs=0.05) and group["shrunk"].std() < group["effect"].std()
    summary = {row["kind"]: row for row in pl.read_csv(measured / "effect_summary.csv").filter(task="all").rows(named=True)}
    assert summary["takeover"]["low"] > 0 and summary["takeover"]["helpful"] > 0.15
    texts = pl.read_parquet(measured / "effect_texts.parquet")
    assert len(texts) == 2 * 4 * 30
    first = texts.group_by("task", "doc_id", "sample", "position", "writer").agg(pl.col("token_ids").list.first().unique())
    tokens = {row[:5]: row[5] for row in first.rows()}
    for row in effects.rows(named=True):
        name = row["task"], row["doc_id"], row["sample"], row["position"]
        assert [tokens[*name, writer] for writer in ("host", "donor")] == [[row["host_token_id"]], [row["donor_token_id"]]]


def test_a_continuation_is_a_plain_run_from_the_same_prefix(measured, strict_run, demo_pair):
    """The stored texts of an example are those that the plain loop writes behind its tokens, with the same numbers."""
    example = json.loads((measured / "effect_examples.json").read_text())["positions"][0]
    run = read_run_folder(strict_run)
    one = next(one for one in run.answered if one.name == (example["task"], example["doc_id"], example["sample"]))
    ((_, found),) = run.read_traces(["token_id"], [one])
    prompt, tokens = tuple(run.find_prompt(one)["prompt_ids"]), tuple(found["token_id"].tolist())
    begun, tokenizer = tokens[: example["position"]], demo_pair.tokenizer
    first = (one.sample + 1) << 40 | example["position"] << 16
    for role in ("host", "donor"):
        (forced,) = tokenizer.encode(example[role]["token"], add_special_tokens=False)
        asked = [Request(prompt, first | number, 320, TASK_SAMPLING, begun=(*begun, forced)) for number in range(4)]
        for number, plain in lockstep.generate(demo_pair, BaseAlone(), asked, seed=run.settings["seed"]):
            text = tokenizer.decode(plain.tokens[len(begun) :], skip_special_tokens=True)
            assert example[role]["behind"][number]["text"] == text


def test_a_stopped_call_goes_on_and_ends_with_the_same_files(demo_runs, tmp_path, monkeypatch, capsys):
    """With the gate on the run itself goes on: behind the donor's token the demo's gate mends what comes."""
    size, passes, stop = ["--takeovers", "4", "--continuations", "2", "--controls", "0", "--after", "gate"], [], None

    def look(role, ids, reads_prompt):
        passes.append(len(ids))
        if len(passes) == stop:
            raise KeyboardInterrupt

    look_before_passes(monkeypatch, look)
    assert measure(demo_runs["guided"], tmp_path / "whole", *size) == 0
    count, rows = len(passes), sum(passes)
    stop = count + 2 * count // 3
    capsys.readouterr()
    assert measure(demo_runs["guided"], tmp_path / "stopped", *size) == 130
    assert 0 < int(re.search(r"(\d+) samples are kept", capsys.readouterr().err)[1]) < 16
    assert measure(demo_runs["guided"], tmp_path / "stopped", *size) == 0
    assert sum(passes[stop:]) < rows
    whole, stopped = ({path.name: path.read_bytes() for path in (tmp_path / name).glob("*.*")} for name in ("whole", "stopped"))
    assert whole == stopped and "effect_texts.parquet" in whole
    assert pl.read_csv(tmp_path / "stopped" / "effects.csv")["correct_donor"].to_list() == [2] * 4

    def stop_in_tables(folder, *rest):
        with pytest.raises(Locked):  # no other call comes between
            Lock(folder.parent / "continuations/journal-000.lock")
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "write_analysis", stop_in_tables)
    assert measure(demo_runs["guided"], tmp_path / "stopped", *size) == 130
    assert whole == {path.name: path.read_bytes() for path in (tmp_path / "stopped").glob("*.*")}  # no mix of two calls


def test_says_what_it_takes_without_loading_a_model(strict_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(TransformersBackend, "__init__", None)
    assert measure(strict_run, tmp_path / "out", "--takeovers", "10", "--continuations", "4", "--dry_run") == 0
    said = capsys.readouterr().out
    assert "10 of " in said and re.search(r"and 5 of \d\d controls among", said) and "120 texts" in said
    assert "hours" in said and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("run", "more", "line"), [
    ("base", [], "was written by the base alone; effects need a guided run"),
    ("guided", ["--takeovers", "0"], "--takeovers 0 is not in 1 to"), ("guided", ["--base", "nowhere"], "--guide is missing"),
    ("guided", ["--continuations", "0"], "--continuations 0 is not in 1 to"),
    ("guided", ["--include_path", "no-tasks"], "--include_path 'no-tasks' is not a folder of task files"),
])  # fmt: skip
def test_refuses_in_a_line(demo_runs, tmp_path, run, more, line):
    with pytest.raises(ArgumentError, match=line):
        measure(demo_runs[run], tmp_path / "out", *more)


def test_a_problem_that_has_changed_is_not_judged_as_the_old_one(demo_runs):
    """It has the old one's number and gold answer."""
    run = read_run_folder(demo_runs["guided"])
    (sample, *_) = run.answered
    documents = [problem | {"problem": "Another one."} for problem in problems()]
    position = Position("takeover", sample, (1,), (), (0.0,), 1, 1, 2, 1.0)
    with pytest.raises(ArgumentError, match=f"doc {sample.doc_id} is another problem than the one that the run in"):
        measuring._judge(run, {sample.task: SimpleNamespace(eval_docs=documents)}, {position: []})


def change_facts(run, **parts):
    return replace(run, facts=run.facts | {name: run.facts[name] | part for name, part in parts.items()})


def test_a_stranger_s_folder_names_no_code_and_a_policy_that_reads_who_wrote_cannot_go_on(demo_runs, tmp_path, demo_pair):
    run = read_run_folder(demo_runs["guided"])
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    planted = {"plugins": str(tmp_path / "evil.py"), "policy_arguments": {"plugins": str(tmp_path / "evil.py")}}
    with pytest.raises(ArgumentError, match="which are not taken from a folder; where you trust them, give --plugins"):
        measuring.load_run_policy(change_facts(run, arguments=planted), demo_pair, None)
    del planted["plugins"]
    measuring.load_run_policy(change_facts(run, arguments=planted), demo_pair, None)
    assert not (tmp_path / "ran").exists()
    nothing = dict.fromkeys(("tau", "kappa", "window"))
    for given, resolved, message in (
        ({"policy": "segment"}, {"method": {}}, "--after gate cannot continue texts of policy=segment"),
        ({}, {"tau": None}, "each task in '.*' has a budget of its own"),
        ({"policy": "random"}, {**nothing, "method": None}, "each task in '.*' has a budget of its own"),
    ):
        with pytest.raises(ArgumentError, match=message):
            measuring.load_run_policy(change_facts(run, arguments=given, takeover=resolved), None, None)
    resolved = {**nothing, "method": {"leniency": 0.9}}  # solved for a target rate
    solved = change_facts(run, arguments={"policy": "lossy"}, takeover=resolved)
    assert measuring.load_run_policy(solved, None, None).leniency == 0.9


def test_the_report_shows_the_largest_effects(measured, strict_run, demo_runs, tmp_path):
    runs = [str(demo_runs["base"]), str(strict_run)]
    assert main(["analyze", *runs, "--out", str(tmp_path / "analysis"), "--only", "budget,flips"]) == 0
    report = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "analysis"), "--effects", str(measured), "--out", str(report)]) == 0
    page, examples = report.read_text(), json.loads((measured / "effect_examples.json").read_text())["positions"]
    assert page.count('<details class="effect">') == len(examples) > 5
    sides = [example[role] for example in examples for role in ("host", "donor")]
    assert page.count(">correct <") == sum(one["correct"] for side in sides for one in side["behind"])
    assert examples[0]["donor"]["token"].strip() in page and page.count("<svg") == 8
    assert "behind the guide's token minus the share behind the base's" in page and "Guide's token: <code>" in page
    shutil.copytree(measured, reverse := tmp_path / "reverse")  # where the guide writes by default
    edit(reverse / "effect_examples.json", lambda told: told.update(host="guide", donor="base"))
    assert main(["report", str(tmp_path / "analysis"), "--effects", str(reverse), "--out", str(report)]) == 0
    assert "behind the base's token minus the share behind the guide's" in report.read_text()
    with pytest.raises(ArgumentError, match="expected the --out of an effects command that has ended"):
        main(["report", str(tmp_path / "analysis"), "--effects", str(tmp_path), "--out", str(report)])


def make_rows(count):
    return np.rec.fromarrays(np.random.default_rng(0).random((2, count), dtype=np.float32), names="score,place")


def test_the_choice_is_even_over_scores_and_places():
    rows = make_rows(4000)
    chosen, inclusion = choose_evenly(rows, np.ones(4000), 400, seed=1)
    assert len(chosen) == 400 and (np.diff(chosen) > 0).all() and set(inclusion) == {0.1}
    for name in ("score", "place"):
        quarters = np.histogram(rows[name][chosen], 4, (0, 1))[0]
        assert (abs(quarters - 100) < 15).all(), quarters
    assert choose_evenly(rows, np.ones(4000), 400, seed=2)[0].tolist() != chosen.tolist()
    assert choose_evenly(rows[:5], np.ones(5), 400, seed=1)[1].tolist() == [1] * 5


def test_each_row_is_drawn_as_often_as_its_probability_says():
    rows, sizes = make_rows(60), np.random.default_rng(1).exponential(size=60)
    counts, stated = np.zeros(60), np.zeros(60)
    for seed in range(2000):
        chosen, inclusion = choose_evenly(rows, sizes, 12, seed)
        counts[chosen] += 1
        stated[chosen] = inclusion
    np.testing.assert_allclose(counts / 2000, stated, atol=0.05)


def test_the_model_that_was_not_asked_draws_with_the_numbers_of_the_run(strict_run, tmp_path):
    """Asked again at the takeovers of a gate, both models draw what its trace says."""
    run = read_run_folder(strict_run)
    form = Form.of(run)
    candidates = list_candidates(run, form.limit)
    taken = candidates["takeover"].choose(20, 0, None)
    readers = Readers(restore_arguments(run, {"batch_size": "64"}))
    writer = Writer(tmp_path / "written", readers, 0)
    requests = [form.next_token(one) for one in taken]
    for role, tokens in ((run.host, [one.host_token for one in taken]), (run.donor, [one.donor_token for one in taken])):
        assert writer.draw(ALONE[role](), requests) == tokens
    draw = lambda them: writer.draw(ALONE[run.donor](), [form.next_token(one) for one in them])  # noqa: E731
    controls = candidates["control"].choose(6, 0, draw)
    assert len(controls) == 6 and all(one.host_token != one.donor_token for one in controls)
    assert sum(1 / one.inclusion for one in controls) == pytest.approx(candidates["control"].expected, rel=0.8)
    writer.run.close()
    readers.close()

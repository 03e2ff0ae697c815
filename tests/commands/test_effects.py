"""What a single takeover does: measured on the demo, stopped and resumed, and refused."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from helpers.demo_runs import run_demo
from transformers import AutoTokenizer

from lm_eval_takeover.analysis.effects import nested_mean
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.effects import measuring
from lm_eval_takeover.commands.effects.continuing import Writer
from lm_eval_takeover.commands.effects.positions import choose_evenly
from lm_eval_takeover.decoding import lockstep
from lm_eval_takeover.decoding.backend import TransformersBackend
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.demo.puzzle import decision_positions
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.policies import BaseAlone
from lm_eval_takeover.method.request import TASK_SAMPLING, Request
from lm_eval_takeover.runs.run_reader import read_run_folder

TABLES = ("effects", "effect_by_score", "effect_summary", "effect_auroc")


def measure(run, out, *more):
    return main(["effects", str(run), "--out", str(out), "--batch_size", "64", *more])


@pytest.fixture(scope="module")
def strict_run(tmp_path_factory):
    """Twelve problems of the demo, guided by a gate that leaves the synonyms to the base."""
    folder = tmp_path_factory.mktemp("strict") / "guided"
    run_demo(folder, 12, {"tau": 4.0, "kappa": 0.0})
    return folder


@pytest.fixture(scope="module")
def measured(strict_run, tmp_path_factory):
    """Takeovers and controls of that run, four continuations by the base behind each token."""
    out = tmp_path_factory.mktemp("effects")
    assert measure(strict_run, out, "--takeovers", "60", "--controls", "30", "--continuations", "4") == 0
    return out


def test_writes_tables_and_figures(measured):
    for name in TABLES:
        table = pl.read_csv(measured / f"{name}.csv")
        assert len(table) == len(json.loads((measured / f"{name}.json").read_text()))
        assert (measured / f"{name}.svg").read_text().startswith("<?xml")
    effects = pl.read_csv(measured / "effects.csv")
    assert effects.columns[:9] == [
        "task", "doc_id", "sample", "position", "kind", "host_token_id", "donor_token_id", "score", "ce",
    ]  # fmt: skip
    assert effects["kind"].value_counts().sort("kind").rows() == [("control", 30), ("takeover", 60)]
    assert (effects["host_token_id"] != effects["donor_token_id"]).all()
    assert (effects["score"] - effects["ce"]).abs().max() < 1e-3
    shares = (effects["correct_donor"] - effects["correct_host"]) / effects["continuations"]
    assert effects["effect"].to_list() == pytest.approx(shares.to_list())


def test_true_decisions_matter_and_synonyms_do_not(measured, strict_run):
    """Takeovers stand at true decisions, controls at synonyms, where both models are unsure and nothing hangs on it."""
    tokenizer, run = AutoTokenizer.from_pretrained(DEMO["base"]), read_run_folder(strict_run)
    decisions = {
        one.name: set(decision_positions([tokenizer.decode([token]) for token in table["token_id"].to_pylist()]))
        for one, table in run.read_traces(["token_id"])
    }
    effects = pl.read_csv(measured / "effects.csv")
    effects = effects.with_columns(true=pl.Series([row[3] in decisions[row[:3]] for row in effects.rows()]))
    true, others = effects.filter("true"), effects.filter(kind="control")
    assert len(true) > 20 and not others["true"].any()
    of_true, of_others = (
        nested_mean(*(group[name].to_numpy() for name in ("effect", "doc_id")), 4) for group in (true, others)
    )
    assert of_true.low > 0 and of_true.value > of_others.high
    assert of_others.low <= 0 <= of_others.high


def test_a_continuation_is_a_plain_run_from_the_same_prefix(measured, strict_run, demo_pair):
    """The stored texts of an example are those that the plain loop writes behind its tokens, with the same numbers."""
    example = json.loads((measured / "effect_examples.json").read_text())["positions"][0]
    run = read_run_folder(strict_run)
    one = next(one for one in run.answered if one.name == (example["task"], example["doc_id"], example["sample"]))
    (table,) = [table for _, table in run.read_traces(["token_id"], [one])]
    prompt, tokens = tuple(run.find_prompt(one)["prompt_ids"]), tuple(table["token_id"].to_pylist())
    begun, tokenizer = tokens[: example["position"]], demo_pair.tokenizer
    for role in ("host", "donor"):
        (forced,) = tokenizer.encode(example[role]["token"], add_special_tokens=False)
        asked = [
            Request(
                prompt,
                (one.sample + 1) << 40 | example["position"] << 16 | number,
                320,
                TASK_SAMPLING,
                begun=(*begun, forced),
            )
            for number in range(4)
        ]
        for number, plain in lockstep.generate(demo_pair, BaseAlone(), asked, seed=run.settings["seed"]):
            text = tokenizer.decode(plain.tokens[len(begun) :], skip_special_tokens=True)
            assert example[role]["behind"][number]["text"] == text


def test_with_the_gate_on_the_run_itself_goes_on(demo_runs, tmp_path):
    """Behind the donor's token the demo's gate mends what comes; behind the host's, that one mistake as well."""
    size = ["--takeovers", "4", "--continuations", "1", "--controls", "0", "--after", "gate"]
    assert measure(demo_runs["guided"], tmp_path, *size) == 0
    assert pl.read_csv(tmp_path / "effects.csv")["correct_donor"].to_list() == [1, 1, 1, 1]


def test_a_stopped_call_goes_on_and_ends_with_the_same_tables(demo_runs, tmp_path, monkeypatch, capsys):
    size = ["--takeovers", "6", "--continuations", "2", "--controls", "0"]
    assert measure(demo_runs["guided"], tmp_path / "whole", *size) == 0
    text_of, written = Writer._text_of, []

    def stop_at_the_tenth(writer, request, generation):
        written.append(request)
        if len(written) == 10:
            raise KeyboardInterrupt
        return text_of(writer, request, generation)

    monkeypatch.setattr(Writer, "_text_of", stop_at_the_tenth)
    capsys.readouterr()
    assert measure(demo_runs["guided"], tmp_path / "stopped", *size) == 130
    assert "9 samples are kept" in capsys.readouterr().err
    assert measure(demo_runs["guided"], tmp_path / "stopped", *size) == 0
    assert len(written) == 10 + 24 - 9
    for name in TABLES:
        whole, stopped = ((tmp_path / folder / f"{name}.csv").read_text() for folder in ("whole", "stopped"))
        assert whole == stopped


def test_says_what_it_takes_without_loading_a_model(demo_runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(TransformersBackend, "__init__", None)
    assert measure(demo_runs["guided"], tmp_path / "out", "--takeovers", "10", "--continuations", "4", "--dry_run") == 0
    said = capsys.readouterr().out
    assert "10 of " in said and "5 controls, 4 continuations" in said and "120 texts" in said and "hours" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("run", "more", "line"),
    [
        ("base", [], "was written by the base alone; effects need a guided run"),
        ("guided", ["--takeovers", "0"], "--takeovers 0 is not in 1 to"),
        ("guided", ["--continuations", "0"], "--continuations 0 is not in 1 to"),
        ("guided", ["--base", "nowhere"], "--guide is missing"),
    ],
)
def test_refuses_in_a_line(demo_runs, tmp_path, run, more, line):
    with pytest.raises(ArgumentError, match=line):
        measure(demo_runs[run], tmp_path / "out", *more)


def test_the_choice_is_even_over_scores_and_places():
    rng = np.random.default_rng(0)
    scores, places = rng.random(4000).astype("f4"), rng.random(4000).astype("f4")
    chosen = choose_evenly(scores, places, 400, seed=1)
    assert len(set(chosen.tolist())) == 400 and (np.diff(chosen) > 0).all()
    for values in (scores, places):
        quarters = np.histogram(values[chosen], 4, (0, 1))[0]
        assert (abs(quarters - 100) < 15).all(), quarters
    assert choose_evenly(scores, places, 400, seed=1).tolist() == chosen.tolist()
    assert choose_evenly(scores, places, 400, seed=2).tolist() != chosen.tolist()
    assert choose_evenly(scores[:5], places[:5], 400, seed=1).tolist() == [0, 1, 2, 3, 4]


def test_a_stranger_s_folder_names_no_code(demo_runs, tmp_path, demo_pair):
    run = read_run_folder(demo_runs["guided"])
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    planted = {"plugins": str(tmp_path / "evil.py"), "policy_arguments": {"plugins": str(tmp_path / "evil.py")}}
    with pytest.raises(ArgumentError, match="which are not taken from a folder; where you trust them, give --plugins"):
        measuring._load_run_policy(replace(run, arguments=run.arguments | planted), demo_pair, None)
    del planted["plugins"]
    measuring._load_run_policy(replace(run, arguments=run.arguments | planted), demo_pair, None)
    assert not (tmp_path / "ran").exists()


def test_a_policy_that_depends_on_who_wrote_the_text_does_not_go_on_behind_a_forced_token(demo_runs, demo_pair):
    run = read_run_folder(demo_runs["guided"])
    segment = replace(run, arguments=run.arguments | {"policy": "segment"})
    with pytest.raises(ArgumentError, match="--after gate cannot continue texts of policy=segment"):
        measuring._load_run_policy(segment, demo_pair, None)


def test_the_report_shows_the_largest_effects(measured, strict_run, demo_runs, tmp_path):
    assert (
        main(
            ["analyze", str(demo_runs["base"]), str(strict_run), "--out", str(tmp_path / "analysis"), "--only", "flips"]
        )
        == 0
    )
    report = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "analysis"), "--effects", str(measured), "--out", str(report)]) == 0
    page, examples = report.read_text(), json.loads((measured / "effect_examples.json").read_text())["positions"]
    assert page.count('<details class="effect">') == len(examples) > 5
    assert page.count(">correct <") == sum(
        one["correct"] for example in examples for role in ("host", "donor") for one in example[role]["behind"]
    )
    assert examples[0]["donor"]["token"].strip() in page and page.count("<svg") == 5
    with pytest.raises(ArgumentError, match="expected what lm-eval-takeover effects was given as --out"):
        main(["report", str(tmp_path / "analysis"), "--effects", str(tmp_path), "--out", str(report)])


def test_takeovers_are_preference_pairs(measured, strict_run, tmp_path):
    call = ["export", str(strict_run), "--to", "pairs", "--effects", str(measured), "--out", str(tmp_path)]
    assert main(call) == 0
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert (
        pl.read_parquet(tmp_path / "pairs.parquet").rows()
        == pl.DataFrame(rows, schema=pl.read_parquet_schema(tmp_path / "pairs.parquet")).rows()
    )
    effects = {
        row[:4]: row
        for row in pl.read_csv(measured / "effects.csv")
        .filter(kind="takeover")
        .select("task", "doc_id", "sample", "position", "effect")
        .rows()
    }
    run = read_run_folder(strict_run)
    assert len(rows) > 60 and sum(row["effect"] is not None for row in rows) == 60
    for row in rows:
        name = row["task"], row["doc_id"], row["sample"], row["position"]
        assert row["effect"] == (pytest.approx(effects[name][4]) if name in effects else None)
        best = "host_token" if (row["effect"] or 0) < 0 else "donor_token"
        assert row["chosen"] == row[best] != row["rejected"]
        one = next(one for one in run.answered if one.name == name[:3])
        text = run.find_prompt(one)["prompt"] + one.stored.text
        assert text.startswith(row["prompt"] + row["donor_token"])

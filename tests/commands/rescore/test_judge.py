"""A judge that is asked about responses without an answer; its verdicts never reach `acc`."""

import json
from pathlib import Path

import pytest
from helpers.demo_runs import run_demo
from lm_eval.api.registry import register_model
from lm_eval.models.dummy import DummyLM

from lm_eval_takeover import demo
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.rescore.judge import METRIC, JudgeModel, judge_rest, load_judge, read_reply
from lm_eval_takeover.errors import ArgumentError

SAID = "It may be eighteen after all"


class Scripted(DummyLM):
    """Says yes to one response, no to others that are short, and rambles about the rest; keeps what it was asked."""

    def __init__(self, affirmed=SAID, device=None):
        super().__init__()
        self.affirmed, self.asked = affirmed, []

    def generate_until(self, requests, disable_tqdm=False):
        self.asked += [request.args[0] for request in requests]
        return [self.reply(prompt) for prompt in self.asked]

    def reply(self, prompt):
        if self.affirmed in prompt:
            return "<think>no, or is it?</think>\n**Yes**, it is."
        return " no" if len(prompt) < 1000 else "The response says yes and no."


def row(doc_id, *samples):
    """A logged document: `(response, outcome)` of each sample."""
    responses, outcomes = zip(*samples, strict=True)
    acc = outcomes.count("correct") / len(outcomes)
    document = {"problem": "How many?", "answer": "18"}
    records = [["18" if outcome == "correct" else "", outcome] for outcome in outcomes]
    return {"doc_id": doc_id, "doc": document, "resps": [list(responses)], "filtered_resps": [records], "acc": acc}


def make_results(**rows):
    means = {task: {"acc,all": sum(one["acc"] for one in found) / len(found)} for task, found in rows.items()}
    results = {task: dict(values) for task, values in means.items()} | {"both": {"acc,all": 0.5}}
    return {
        "results": results,
        "groups": {"both": {"acc,all": 0.5}},
        "group_subtasks": {"both": list(rows)},
        "samples": rows,
        "config": {"takeover": {}},
    }


def test_only_what_was_not_read_is_asked_and_acc_stays_as_it_is():
    long = "so " * 400
    results = make_results(
        one=[
            row(0, ("It is 18", "correct"), (SAID, "no_answer"), (long, "unparsed"), (" ", "no_answer")),
            row(1, ("It is 17", "incorrect"), ("9^9^9^9", "timed_out"), ("Who knows", "unparsed"), (SAID, "no_answer")),
        ],
        two=[row(0, ("It is 18", "correct"))],
    )
    before = json.loads(json.dumps(results))
    model = Scripted()
    judged = judge_rest(results, JudgeModel("scripted", "", {}, False, model))
    assert [one.describe() for one in judged] == [
        ("one", "4", "2", "1", "1", "0.1250", "0.3750"),
        ("two", "0", "0", "0", "0", "1.0000", "1.0000"),
    ]
    assert len(model.asked) == 3  # one of them for two samples
    assert all("How many?" in prompt and "18" in prompt for prompt in model.asked)
    assert [one[METRIC] for one in results["samples"]["one"]] == [0.5, 0.25]
    assert results["samples"]["one"][0]["judged"][1] == [2, "none", "The response says yes and no."]
    assert results["groups"]["both"]["acc_judged,all"] == results["results"]["both"]["acc_judged,all"] == 0.6875
    for table in ("results", "groups"):
        for name, values in before[table].items():
            assert values.items() <= results[table][name].items()


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("yes", "yes"),
        (" No.", "no"),
        ("**Yes**, since", "yes"),
        ("<think>no</think>\n\nyes", "yes"),
        ("<think>yes, it", "none"),
        ("maybe yes", "none"),
        ("nothing", "none"),
        ("", "none"),
    ],
)
def test_a_reply_is_yes_no_or_no_verdict(reply, verdict):
    assert read_reply(reply) == verdict


def test_the_judge_reads_the_end_of_a_long_response_and_is_asked_through_its_template():
    class Chat(Scripted):
        def apply_chat_template(self, chat_history, add_generation_prompt=True):
            return f"<user>{chat_history[0]['content']}<assistant>"

    model = Chat(affirmed="</response>")
    results = make_results(one=[row(0, (f"{'x' * 5000} the end", "no_answer"))])
    judge_rest(results, JudgeModel("scripted", "", {"max_gen_toks": 4}, True, model))
    (prompt,) = model.asked
    assert prompt.startswith("<user>") and prompt.endswith("<assistant>")
    assert "the end\n</response>" in prompt and prompt.count("x") < 2100


def test_a_judge_that_cannot_be_had_is_one_line(tmp_path):
    with pytest.raises(ArgumentError, match="--judge 'hff' is no model type of lm-eval; did you mean 'hf'"):
        load_judge("hff")
    with pytest.raises(ArgumentError, match="--judge_gen_kwargs 'temperature': expected NAME=VALUE"):
        load_judge("hf", gen_kwargs="temperature")
    register_model("scripted-judge")(Scripted)
    with pytest.raises(ArgumentError, match=r"--judge_args 'size=3': scripted-judge cannot be loaded: .*'size'"):
        load_judge("scripted-judge", "size=3")
    with pytest.raises(ArgumentError, match="need --judge MODEL"):
        main(["rescore", str(tmp_path), "--judge_args", "pretrained=x"])


@pytest.mark.slow
def test_a_stock_model_of_lm_eval_judges_a_stored_run(tmp_path, capsys):
    """The demo's base by `hf`: it knows neither yes nor no, so it gives no verdict and changes nothing."""
    folder = tmp_path / "run"
    run_demo(folder, 1, {"policy": "base"}, gen_kwargs="max_gen_toks=3")  # too short for an answer
    base = Path(demo.__file__).parent / "base"
    out = tmp_path / "out"
    judge = ["--judge", "hf", "--judge_args", f"pretrained={base}", "--judge_gen_kwargs", "max_gen_toks=4"]
    assert main(["rescore", str(folder), *judge, "--output_path", str(out)]) == 0
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("takeover_demo"))
    assert row.split() == ["takeover_demo", "8", "0", "0", "8", "0.0000", "0.0000"]
    (file,) = out.rglob("results_*.json")
    found = json.loads(file.read_text())
    values = found["results"]["takeover_demo"]
    assert [values[f"{name},all"] for name in ("acc_judged", "acc", "no_answer", "truncated")] == [0, 0, 1, 1]
    assert found["config"]["takeover"]["judge"]["model"] == "hf"
    (samples,) = out.rglob("samples_*.jsonl")
    assert [said[:2] for said in json.loads(samples.read_text())["judged"]] == [[number, "none"] for number in range(8)]
    assert main(["leaderboard", str(out)]) == 0

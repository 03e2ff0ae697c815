"""calibrate: its prompts, the file that it writes, and what is refused."""

import json
import os
import random
import re
import shlex
import shutil
import signal
from pathlib import Path
from unittest.mock import Mock

import datasets
import pytest
from helpers.one_line import one_line
from helpers.pairs import ROOT
from helpers.processes import wait_until
from helpers.run_dirs import query
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from puzzle import make_puzzle

from lm_eval_takeover.calibration.files import read_calibration
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.calibrate import measurement
from lm_eval_takeover.commands.calibrate.prompts import TaskForm, load_task_form, read_prompts
from lm_eval_takeover.commands.calibrate.rollouts import HeldOutRollouts, MeasuredRate
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, DEMO, PROMPT, problems
from lm_eval_takeover.errors import ArgumentError, CalibrationError, TakeoverError
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.stopping import Terminated


def test_calibrate_writes_a_file_that_lm_eval_accepts(tmp_path, printed):
    out = tmp_path / "mine.json"
    call = ["calibrate", "--prompts", str(CALIBRATION_PROMPTS), "--num_prompts", "6", "--out", str(out)]
    shown = printed(*call)
    assert "\nce " in shown and "\njs " not in shown  # --score js was not asked for
    page = out.with_suffix(".md").read_text()
    assert "| ce |" in page and "| js |" not in page
    assert "6 rollouts, " in shown
    assert "few tokens: below a spike ratio of 0.0" in shown
    content = json.loads(out.read_text())
    assert list(content["scores"]) == scores.names()
    assert content["base"]["id"] == "demo-base"
    assert len(content["prompts"]["indices"]) == content["prompts"]["asked"] == 6
    assert (content["decoding"]["max_gen_toks"], content["cut"]) == (16_384, 0)
    lm = GuidedTakeover(calibration=str(out), spike_ratio=0.05, score="rkl")
    assert lm.policy.gate.tau > 0 and lm.get_model_info()["takeover"]["calibration"] == "mine"
    first = out.read_text()
    with pytest.raises(ArgumentError, match=r"mine\.json' exists; give another name, --overwrite, or --extend"):
        main(call)
    assert main([*call, "--overwrite"]) == 0
    assert out.read_text() == first  # deterministic for a seed
    out.unlink()
    with pytest.raises(ArgumentError, match=r"mine\.md' exists;"):  # the page alone
        main(call)


def test_a_calibration_in_a_tasks_form_is_one_that_its_runs_accept(tmp_path, capsys, monkeypatch, caplog):
    """In the chat template and at another temperature, of fewer prompts than asked for."""
    rows = [make_puzzle(random.Random(seed)).text for seed in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"problem": text}) + "\n" for text in rows))
    monkeypatch.chdir(tmp_path)
    pair = ["--base", os.path.relpath(DEMO["base"]), "--guide", os.path.relpath(DEMO["guide"])]
    form = ["--task", "takeover_demo", "--apply_chat_template", "--enable_thinking", "False", "--max_gen_toks", "6"]
    call = ["calibrate", *pair, *form, "--prompts", "rows.jsonl", "--out", "made/mine.json"]
    assert main([*call, "--temperature", "1", "--top_k", "9"]) == 0
    assert "6 rollouts (500 prompts were asked for), 36 tokens; 6 of them (100.0%) were cut" in capsys.readouterr().out
    assert "6 of 6 rollouts (100.0%) did not end within --max_gen_toks 6 or the context, and were cut" in caplog.text
    made = read_calibration(tmp_path / "made" / "mine.json")
    decoding = {"temperature": 1.0, "top_p": 0.95, "top_k": 9, "max_gen_toks": 6, "until": [], "seed": 0}
    assert made.decoding == decoding
    lm = GuidedTakeover(calibration="made/mine.json", spike_ratio=0.03, base=pair[1], guide=pair[3], enable_thinking=False)
    prompt = lm.apply_chat_template([{"role": "user", "content": PROMPT.format(problem=rows[0])}])
    settings = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 9, "max_gen_toks": 2}
    lm.generate_until([Instance("generate_until", {}, (prompt, settings), 0, metadata=("takeover_demo", 0, 1))])
    with pytest.raises(CalibrationError, match="was measured with prompts in the chat template and temperature=1"):
        lm.generate_until([Instance("generate_until", {}, (rows[0], {}), 0, metadata=("takeover_demo", 0, 1))])


def test_a_diagnostic_calibration_is_marked_and_its_benchmark_refuses_it(tmp_path):
    out = tmp_path / "own.json"
    call = ["calibrate", "--task", "takeover_demo", "--diagnostic", "--num_prompts", "3", "--max_gen_toks", "8"]
    assert main([*call, "--out", str(out)]) == 0
    assert read_calibration(out).diagnostic == ("takeover_demo",)
    page = out.with_suffix(".md").read_text()
    assert "- Measured on problems of takeover_demo; runs on these refuse it." in page
    with pytest.raises(CalibrationError, match=r"was measured on problems of takeover_demo \(calibrate --diagnostic\)"):
        simple_evaluate(model=GuidedTakeover(calibration=str(out)), tasks=["takeover_demo"], limit=1)


def test_calibrate_reads_models_and_data_of_the_hub_and_refuses_test_sets(forked_at_hub, tmp_path):
    out = tmp_path / "gsm8k.json"
    options = ["--base", "acme/base@main", "--guide", "acme/guide", "--num_prompts", "3", "--max_gen_toks", "8"]
    forked_at_hub.run("lm-eval-takeover", "calibrate", "--prompts", "openai/gsm8k:main", *options, "--out", out)
    content = json.loads(out.read_text())
    assert content["base"]["id"] == "acme/base"
    assert len(content["guide"]["revision"]) == 40  # the hub's commit
    prompts = content["prompts"]
    assert (prompts["dataset"], prompts["split"], prompts["field"]) == ("openai/gsm8k:main", "train", "question")
    assert prompts["template"].startswith("Problem: {{question}}\nPlease reason step by step")
    call = ["calibrate", "--prompts", "Idavidrein/gpqa:gpqa_diamond", "--field", "Question", "--num_prompts", "20"]
    done = forked_at_hub.run("lm-eval-takeover", *call, "--out", tmp_path / "out.json", HF_TOKEN="hf_token", status=2)
    assert not (tmp_path / "out.json").exists()
    assert "takeover_gpqa_diamond: rows" in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--prompts EMPTY", "--prompts 'EMPTY' holds no prompt"),
        ("--prompts WRONG", "--prompts 'WRONG': no text in field 'prompt' (its fields: text); name the field with --field"),
        ("--prompts LONG", "--prompts: all 1 are empty or exceed the context of 2048 tokens"),
        ("--prompts none.jsonl", "does not exist; expected a JSONL file, or a data set of the hub"),
        ("--prompts LONG --score kl", "--score 'kl' is not known; did you mean 'rkl'?"),
        ("--prompts LONG --methods random@0.05", "policy=random has nothing that a rate could be solved by"),
        ("--prompts LONG --enable_thinking True", "--enable_thinking True needs --apply_chat_template"),
        ("--prompts LONG --model_args polcy=random", "--model_args polcy=… loads no model; "),
    ],
)
def test_an_error_of_the_user_is_one_line_and_writes_nothing(tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    rows = {"EMPTY": "", "WRONG": '{"text": "hello"}\n', "LONG": json.dumps({"prompt": "word " * 9000}) + "\n"}
    for name, content in rows.items():
        Path(name).write_text(content)
    with one_line(TakeoverError, text):
        main(["calibrate", *words.split(), "--out", "out.json"])
    assert not Path("out.json").exists()


def count_kept(folder, kind):
    """How many rollouts or results the journal beside a calibration holds."""
    journals = folder.glob(".out.json.*.partial/journal-000.sqlite")
    return sum(len(query(path.parent, "SELECT key FROM evidence WHERE kind = ?", (kind,))) for path in journals)


def test_a_calibration_that_is_stopped_and_killed_goes_on_and_ends_with_the_same_file(forked, tmp_path):
    """Stopped by a signal while it measures, and killed while it solves for a rate; meanwhile nobody else may."""
    call = ["calibrate", "--prompts", CALIBRATION_PROMPTS, "--batch_size", "5", "--num_prompts", "15", "--num_held_out", "5"]
    call += ["--target_rate", "0.05", "0.15", "--max_gen_toks", "48", "--out"]

    def calibrate(out):
        return forked.start("lm-eval-takeover", *call, out, cwd=ROOT)

    whole, killed = tmp_path / "whole" / "out.json", tmp_path / "killed" / "out.json"
    process = calibrate(whole)
    assert process.wait() == 0, process.stderr
    assert "\nce      spike_ratio    5.0%" in process.stdout

    killed.parent.mkdir()
    process = calibrate(killed)
    wait_until(lambda: count_kept(killed.parent, "rollout") >= 10, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert process.stderr.strip().endswith("stopped; what was finished is kept, and the same command goes on from there")
    assert count_kept(killed.parent, "rollout") % 5 == 0  # whole groups
    process = calibrate(killed)
    wait_until(lambda: count_kept(killed.parent, "result"), process)
    process.send_signal(signal.SIGSTOP)
    second = calibrate(killed)
    assert second.wait() == 2
    assert "what is measured cannot be kept beside it: run_dir=" in second.stderr.strip().splitlines()[-1]
    process.kill()
    assert not killed.exists()
    process = calibrate(killed)
    assert process.wait() == 0, process.stderr
    assert "15 samples from before" in process.stderr
    assert killed.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in killed.parent.iterdir()) == ["out.json", "out.md"]


def test_the_calibrate_command_of_an_error_makes_what_the_run_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 20, "max_gen_toks": 2, "until": []}
    request = Instance("generate_until", {}, ("2 + 2 =", asked), 0, metadata=("a", 0, 1))
    with pytest.raises(CalibrationError) as caught:
        GuidedTakeover(calibration="demo", target_rate=0.05).generate_until([request])
    (command,) = re.findall("`(.*?)`", str(caught.value))
    name, *words = shlex.split(command)
    few = ["--num_prompts", "3", "--num_held_out", "3", "--max_gen_toks", "8"]
    assert name == "lm-eval-takeover" and main([*words, *few]) == 0
    GuidedTakeover(calibration="my-pair.json", target_rate=0.05).generate_until([request])
    shutil.copy(CALIBRATION_PROMPTS, tmp_path)
    with pytest.raises(CalibrationError, match="or give spike_ratio=…") as caught:
        GuidedTakeover(calibration="my-pair.json", target_rate=0.3).generate_until([request])
    before = read_calibration(Path("my-pair.json"))
    (command,) = re.findall("`(.*?)`", str(caught.value))
    assert command.endswith("--out my-pair.json --extend") and main(shlex.split(command)[1:]) == 0
    after = read_calibration(Path("my-pair.json"))
    assert after.targets[:1] == before.targets and after.scores == before.scores and after.targets[1].target_rate == 0.3


def test_a_calibration_that_ends_between_its_two_files_goes_on(tmp_path, monkeypatch):
    words = ["calibrate", "--prompts", str(CALIBRATION_PROMPTS), "--num_prompts", "3", "--max_gen_toks", "8"]
    words += ["--out", str(tmp_path / "out.json"), "--methods", "ce@0.05", "surprise@0.05", "--num_held_out", "5"]
    monkeypatch.setattr(HeldOutRollouts, "measure", lambda self, value, label: MeasuredRate(round(1e6 * value), 10**6, 0.0))
    with monkeypatch.context() as patched:
        patched.setattr(measurement, "write_calibration", Mock(side_effect=Terminated))
        assert main(words) == 143
    assert not (tmp_path / "out.json").exists() and (tmp_path / "out.md").exists()
    assert main(words) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.md"]
    rates = (tmp_path / "out.md").read_text().partition("## Rates")[2].partition("Rates solved")[0]
    assert "| ce |" in rates and "| surprise |" in rates  # those of the methods


@pytest.fixture
def write(tmp_path):
    """Writes texts as rows of a file, and returns its path."""

    def write(texts, field="prompt", name="rows"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({field: text, "n": i}) + "\n" for i, text in enumerate(texts)))
        return str(path)

    return write


def test_prompts_are_drawn_by_seed_and_held_out_ones_are_others(write):
    rows = write(f"How much is {i} and {i}?" for i in range(50))
    one, again, other = (read_prompts(rows, count=20, held_out=10, seed=seed) for seed in (0, 0, 1))
    assert one == again
    assert one.texts != other.texts
    assert (len(one.texts), len(one.held_out)) == (20, 10)
    assert not set(one.texts) & set(one.held_out)
    assert read_prompts(rows, count=20).texts == one.texts  # whatever is held out beside them
    assert one.source["digest"] != other.source["digest"]
    few = read_prompts(rows, count=500, held_out=100)  # of too few, two fifths are held out
    assert (len(few.texts), len(few.held_out)) == (30, 20)
    assert len(read_prompts(rows, count=500).texts) == 50


def test_rows_that_repeat_a_prompt_are_left_out(write, caplog):
    assert sorted(read_prompts(write(f"say {i % 3}" for i in range(30))).texts) == ["say 0", "say 1", "say 2"]
    assert "27 rows of" in caplog.text


@pytest.mark.parametrize(
    "wrap", [str.upper, "Problem: {}\nSolution:".format, lambda p: f"You are a careful solver.  {p.replace(' ', '  ')}  Think."]
)
def test_problems_of_a_test_set_are_refused_however_they_are_wrapped(write, wrap):
    path = write(["What is the time?", wrap(problems()[7]["problem"])])
    with pytest.raises(ArgumentError, match=r"1 of 2 prompts are problems of a test set \(takeover_demo: row 2\)"):
        read_prompts(path)


def test_prompts_of_a_task_are_those_that_lm_eval_asks(write):
    """Its own requests for documents with the same problems, with and without a chat template."""
    from lm_eval_takeover.tasks.sampled import load_named_tasks

    rows = [{"problem": f"How much is {i} and {i}?", "answer": "1"} for i in range(4)]
    path = write((row["problem"] for row in rows), "problem")
    form = load_task_form("takeover_demo", None)
    assert (form.sampling.temperature, form.sampling.top_p, form.max_gen_toks) == (0.6, 0.95, 320)
    (task,) = load_named_tasks(["takeover_demo"]).values()
    task.dataset["test"] = datasets.Dataset.from_list(rows)
    task.config.repeats = 1

    def chat(text):
        return f"<user>{text}</user>"

    def template(messages, **_):
        return chat(messages[0]["content"])

    for applied in (False, True):
        task.build_all_requests(apply_chat_template=applied, chat_template=template)
        made = read_prompts(path, task=form, chat=chat if applied else None)
        assert list(made.texts) == [instance.args[0] for instance in task.instances]
        assert (made.source["task"], made.source["template"]) == ("takeover_demo", form.template)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("takeover_dmo", r"--task 'takeover_dmo' is not known; did you mean 'takeover_demo'\?"),
        ("told", r"--task told sets description='Think\.', which its template does not hold"),
        ("asked", r"--task asked is loglikelihood; only generate_until can be calibrated on"),
        ("both", r"--task both holds tasks of 2 forms \(takeover_demo, other\); name one of them"),
    ],
)
def test_a_task_without_one_form_of_prompts_is_refused(tmp_path, name, text):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "x", "answer": "y"}\n')
    data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {rows}}}}}\ntest_split: test\n"
    shape = 'output_type: generate_until\ndoc_to_text: "{{problem}}"\ndoc_to_target: "{{answer}}"\n'
    (tmp_path / "told.yaml").write_text(f"task: told\n{data}{shape}description: Think.\n")
    (tmp_path / "other.yaml").write_text(f"task: other\n{data}{shape}")
    (tmp_path / "asked.yaml").write_text(f"task: asked\n{data}{shape.replace('generate_until', 'loglikelihood')}")
    (tmp_path / "both.yaml").write_text("group: both\ntask: [takeover_demo, other]\n")
    with pytest.raises(ArgumentError, match=text):
        load_task_form(name, tmp_path)


def test_documents_of_the_task_itself_are_refused_and_are_not_under_diagnostic(write):
    """The very file of one's own benchmark, whatever its fields are called."""
    texts = [f"A box holds {i} red and {i + 2} blue balls. How many are there?" for i in range(12)]
    known = [{"problem": text} for text in texts[:6]]
    form = TaskForm("mine", lambda row: f"Q: {row['problem']}", None, Sampling(0.6), (), 9, known)
    own, others = write(texts[4:], "question", "own"), write(texts[6:], "question", "others")
    with pytest.raises(ArgumentError, match=r"2 of 8 prompts are problems of a test set \(mine: rows 1, 2\)"):
        read_prompts(own, field="question", task=form)
    assert read_prompts(own, field="question", task=form, diagnostic=True).benchmarks == ("mine",)
    assert read_prompts(None, task=form, diagnostic=True).benchmarks == ("mine",)
    made = read_prompts(others, field="question", task=form)
    assert len(made.source["problems"]) == 6 and made.source["checked_against"][-1] == "mine"

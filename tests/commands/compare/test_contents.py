"""A row is made anew exactly if something changed that can change one of its texts or a verdict."""

import argparse
import json
import shutil
from importlib import metadata

from helpers.stock import comparing_here

from lm_eval_takeover.arguments import KINDS
from lm_eval_takeover.cli import build_parser, main
from lm_eval_takeover.commands.compare import calls, contents
from lm_eval_takeover.commands.compare.contents import TaskLoad, read_workload
from lm_eval_takeover.commands.compare.rows import PlannedRow, plan_rows
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.method.request import TASK_SAMPLING
from lm_eval_takeover.results.files import read_run
from lm_eval_takeover.runs.run_reader import read_run_folder

TASK = """\
task: mine
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{problem}}}}"
doc_to_target: "{{{{answer}}}}"
process_results: !function judging.judge
generation_kwargs: {{max_gen_toks: 8, until: []}}
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
CODE = {
    "judging.py": "from words import RIGHT\n\n\ndef judge(doc, results):\n    return {'acc': float(results[0] == RIGHT)}\n",
    "words.py": "RIGHT = '7'\n",
}
PLUGIN = """\
from lm_eval_takeover import register_score


@register_score("mine", needs_donor=False)
def mine(logits):
    return logits.amax(-1)
"""


def edit(path):
    """One byte more or another one, as long as it stays readable."""
    if path.suffix == ".safetensors":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    elif path.suffix == ".jsonl":
        path.write_text(path.read_text().replace("7", "8"))
    elif path.suffix == ".yaml":
        path.write_text(path.read_text().replace("max_gen_toks: 8", "max_gen_toks: 9"))
    else:
        path.write_text(path.read_text() + (" \n" if path.suffix == ".json" else "\n# changed\n"))


def test_every_file_that_a_row_reads_makes_it_anew_and_no_other(read_options, tmp_path, monkeypatch):
    for role in DEMO:
        shutil.copytree(DEMO[role], tmp_path / role)
    shutil.copytree(DEMO["base"], tmp_path / "thinker")
    models = [path for name in ("base", "guide", "thinker") for path in (tmp_path / name).iterdir()]
    data, tasks, score = tmp_path / "data.jsonl", tmp_path / "tasks", tmp_path / "score.py"
    tasks.mkdir()
    data.write_text(json.dumps({"problem": "3 + 4 =", "answer": "7"}) + "\n")
    score.write_text(PLUGIN)
    for name, code in {**CODE, "mine.yaml": TASK.format(data=data)}.items():
        (tasks / name).write_text(code)
    monkeypatch.syspath_prepend(tasks)
    words = [
        "--tasks",
        "mine",
        "--include_path",
        str(tasks),
        "--base",
        str(tmp_path / "base"),
        "--guide",
        str(tmp_path / "guide"),
    ]
    words += ["--model_args", f"plugins={score}", "--rows", f"guided:tau=1,thinking={tmp_path / 'thinker'}"]

    def read():
        options = read_options(*words)
        return options, plan_rows(options), read_workload(options)

    def list_keys(options, rows, loads):
        plan = calls.CalibrationPlan()
        return {row.name: [call.results for call in calls.plan_calls(options, row, plan, loads)] for row in rows}

    planned = read()  # which reads no file of a model
    before = list_keys(*planned)
    (tmp_path / "base" / ".hidden").write_text("not read")
    (tasks / "notes.txt").write_text("not read")
    assert list_keys(*read()) == before
    for path in (*models, score, data, *(tasks / name for name in (*CODE, "mine.yaml"))):
        edit(path)
        after = list_keys(*(planned if path in models else read()))
        of_thinking, of_pair = "thinker" in path.parts, path == score or {"base", "guide"} & {*path.parts}
        assert (after["guided"] != before["guided"]) is not of_thinking, path
        assert (after["thinking"] != before["thinking"]) is not bool(of_pair), path
        before = after


def make_key(options, **arguments):
    """The key of a guided call with these model arguments."""
    loads = [TaskLoad("takeover_demo", 1, 1, 1, TASK_SAMPLING, "form", "digest")]
    return calls._make_call(options, PlannedRow("x", "x"), "guided-takeover", arguments, options.tasks, loads).results


def test_every_model_argument_that_can_change_a_text_is_in_the_key(read_options, tmp_path, monkeypatch):
    """But not the bytes of a folder that has the name of a policy."""
    options = read_options()
    for name, kind in KINDS.items():
        first, second = (make_key(options, **{name: value}) for value in ("json", "csv"))  # modules that are there
        assert (first != second) is (kind.key is not None or name == "model"), name
    monkeypatch.chdir(tmp_path)
    before = make_key(options, policy="base", model="base")
    (tmp_path / "base").mkdir()
    assert make_key(options, policy="base", model="base") == before


def test_every_option_of_compare_is_in_the_key_or_changes_no_text(read_options, tmp_path):
    """Those of `rows` say which rows there are, those of `models` become model arguments, those of a calibration its content."""
    in_key = {"apply_chat_template": [], "gen_kwargs": ["temperature=0.7"], "limit": ["3"], "seed": ["4"], "metadata": ["a=1"]}
    rows = {"rows", "rates", "target_rate", "thinking_args", "thinking_backend", "calibration"}
    models = {"base", "guide", "direction", "enable_thinking", "dtype", "guide_dtype", "trust_remote_code", "model_args"}
    measured = {"prompts", "field", "num_prompts", "num_held_out"}
    harmless = {"run_dir", "thinking_batch_size", "batch_size", "device", "guide_device", "format", "quiet", "dry_run"}
    by_content = {"tasks", "include_path"}
    (subcommands,) = [each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    known = {action.dest for action in subcommands.choices["compare"]._actions} - {"help"}
    assert known == {*in_key, *rows, *models, *measured, *harmless, *by_content}
    plain = make_key(read_options())
    for name, words in in_key.items():
        assert make_key(read_options(f"--{name}", *words)) != plain, name
    for name, words in (("batch_size", ["3"]), ("device", ["cpu"]), ("include_path", [str(tmp_path)])):
        assert make_key(read_options(f"--{name}", *words)) == plain, name


def test_code_versions_and_commits_of_the_hub_are_in_the_key(read_options, monkeypatch):
    options, packages = read_options(), metadata.version
    plain = make_key(options)
    for name in ("torch", "lm-eval", "math-verify", "peft"):
        monkeypatch.setattr(metadata, "version", lambda each, name=name: "0" if each == name else packages(each))
        contents.identify_code.cache_clear()
        assert make_key(options) != plain, name
    monkeypatch.setattr(metadata, "version", packages)
    contents.identify_code.cache_clear()

    def make_keys(commit):
        monkeypatch.setattr(contents, "find_commit", lambda name, revision: f"{name}@{commit}")
        return {make_key(options, **{name: "acme/model"}) for name in ("base", "guide", "peft", "guide_peft")}

    assert not make_keys("a") & make_keys("b")
    monkeypatch.undo()
    contents.find_commit.cache_clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    unknown = contents.find_commit("acme/never-seen", None)
    contents.find_commit.cache_clear()
    assert contents.find_commit("acme/never-seen", None) != unknown  # so its row is made anew


def test_a_calibration_counts_by_its_content_and_is_measured_anew_for_other_prompts(read_options, tmp_path):
    file, options = tmp_path / "mine.json", read_options()
    before = None
    for targets, scores, is_new in (([0.05], 1, True), ([0.05, 0.1], 1, False), ([0.05], 2, True), ([0.1], 2, True)):
        file.write_text(json.dumps({"scores": scores, "targets": [{"target_rate": rate} for rate in targets]}))
        key = make_key(options, calibration=str(file), target_rate="0.05")
        assert (key != before) is is_new, targets
        before = key
    assert make_key(options, calibration="demo") not in (before, make_key(options))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"problem": "7"}\n')
    options = read_options("--prompts", str(prompts), "--target_rate", "0.07", "--rows", "guided")
    plans = []
    for _ in range(2):
        plans.append(calls.plan_calibration(options, plan_rows(options), read_workload(options)))
        edit(prompts)
    assert plans[0].calibration != plans[1].calibration


def test_another_tau_in_one_folder_is_a_row_of_its_own_and_its_file_says_which_one_is_meant(tmp_path):
    words = ["compare", "--tasks", "takeover_demo", "--rows", "guided", "--limit", "1", "--gen_kwargs", "max_gen_toks=8"]
    with comparing_here():
        for tau in ("0.5", "2", "0.5"):
            assert main([*words, "--model_args", f"tau={tau}", "--run_dir", str(tmp_path), "--quiet"]) == 0
            (row,) = json.loads((tmp_path / "rows.json").read_text())
            takeover = read_run(*(tmp_path / row["results"][0]).glob("results_*.json")).takeover
            identities = {task: own["identity"] for task, own in takeover["per_task"].items()}
            assert read_run_folder(tmp_path / "guided").takeover["tau"] == float(tau)
            assert (takeover["tau"], json.loads((tmp_path / "guided" / "row.json").read_text())) == (float(tau), identities)
    assert len(list((tmp_path / "guided").glob("results-*/call.json"))) == 2

"""What runs elsewhere: examples/ in a shell as GitHub runs them, and `scripts/gpu_check.sh` with a Python that stands in."""

import itertools
import json
import os
import re
import sys
import tarfile
import time
from pathlib import Path

import experiment
import problems as made
import pytest
import yaml
from helpers import processes
from helpers.pairs import ROOT
from helpers.processes import environment
from helpers.results import takeover, write_results
from labels import label_effects, label_token

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.calibrate.measurement import read_methods
from lm_eval_takeover.commands.compare.comparison import read_comparison
from lm_eval_takeover.commands.regress.baseline import read_baseline
from lm_eval_takeover.runs.run_reader import read_run_folder
from lm_eval_takeover.tasks.sampled import load_named_tasks

EXAMPLES = ROOT / "examples"
ACTION = yaml.safe_load((EXAMPLES / "regress-action" / "action.yml").read_text())
WORKFLOW = yaml.safe_load((EXAMPLES / "takeover-workflow.yml").read_text())


@pytest.fixture
def shell(tmp_path):
    """Runs a `run:` step as a runner does: bash -e, a summary file, our command on the PATH, or the script `noted` as it."""
    summary, bin = tmp_path / "summary.md", tmp_path / "bin"
    bin.mkdir()

    def run(step, noted=None, **env):
        if noted:
            (bin / "lm-eval-takeover").write_text(f"#!/bin/sh\n{noted}\n")
            (bin / "lm-eval-takeover").chmod(0o755)
        path = os.pathsep.join([str(bin), str(Path(sys.executable).parent), os.environ["PATH"]])
        given = {"PATH": path, "GITHUB_STEP_SUMMARY": str(summary)}
        given |= {"GITHUB_ENV": str(tmp_path / "env"), "GITHUB_SHA": "abc", "PYTHONPATH": str(ROOT)} | env
        words = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
        return processes.run(words, env=environment(**given), cwd=tmp_path)

    run.folder, run.summary = tmp_path, summary
    return run


def inputs_of(step, given):
    """The environment of a step of the action, with `${{ inputs.NAME }}` filled in."""
    values = {name: field.get("default", "") for name, field in ACTION["inputs"].items()} | given
    return {
        name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: values[found[1]], text) for name, text in step["env"].items()
    }


@pytest.mark.parametrize(("correct", "status"), [([8, 7, 8, 6] * 10, 0), ([1, 2, 0, 1] * 10, 1)])
def test_the_action_passes_or_fails_and_writes_its_summary(shell, correct, status):
    write_results(shell.folder / "good", {"takeover_demo": [8, 7, 8, 6] * 10}, run=takeover())
    main(["regress", str(shell.folder / "good"), "--baseline", str(shell.folder / "b.json"), "--update"])
    write_results(shell.folder / "now", {"takeover_demo": correct}, run=takeover(seed=1))
    (step,) = ACTION["runs"]["steps"]
    metrics = "acc\nunparsed" if status else "acc"
    done = shell(step, **inputs_of(step, {"results": "now", "baseline": "b.json", "metrics": metrics}))
    assert done.returncode == status, done.stderr
    assert shell.summary.read_text().count("### lm-eval-takeover regress") == 1
    table = shell.summary.read_text()
    assert "| takeover_demo |" in table and all(metric in table for metric in metrics.split())
    assert [path.name for path in (shell.folder / "junit").iterdir()] == ["regress.xml"]


def test_the_steps_of_the_workflow_call_commands_that_exist(shell, parse):
    steps = [step for job in WORKFLOW["jobs"].values() for step in job["steps"] if "compare" in step.get("run", "")]
    for step in steps:
        done = shell(step, 'echo "$@" >> called.txt; echo "| the table |"', RUN_DIR=str(shell.folder / "runs"))
        assert done.returncode == 0, done.stderr
    calls = (shell.folder / "called.txt").read_text().splitlines()
    assert len(calls) == len(steps) == 2
    assert shell.summary.read_text() == "| the table |\n" * 2
    assert "RESULTS=" in (shell.folder / "env").read_text()
    for call in calls:
        read_comparison(parse(*call.split()))


def test_the_workflow_gates_what_the_demo_writes_may_read_only_and_names_its_actions_by_commit():
    gate = WORKFLOW["jobs"]["demo"]["steps"][-1]
    assert (ROOT / gate["uses"] / "action.yml").exists() and set(gate["with"]) <= set(ACTION["inputs"])
    task = read_baseline(ROOT / gate["with"]["baseline"]).tasks["takeover_demo"]
    (run,) = [step["run"] for step in WORKFLOW["jobs"]["demo"]["steps"] if "compare" in step.get("run", "")]
    assert f"--limit {len(task.problems)} " in run and f"{gate['with']['results']}".startswith("runs/demo/guided")
    assert WORKFLOW["permissions"] == {"contents": "read"}
    text = (EXAMPLES / "takeover-workflow.yml").read_text()
    assert all(one.startswith("./") or re.search(r"@[0-9a-f]{40}$", one) for one in re.findall(r"uses: (\S+)", text))
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")


@pytest.mark.parametrize(
    ("metrics", "status", "asked"),
    [("", 2, None), ("   ", 2, None), ("*", 0, ["*"]), ("acc pass@8", 0, ["acc", "pass@8"]), ("$(id)", 0, ["$(id)"])],
)
def test_the_action_compares_the_metrics_that_it_is_given(shell, metrics, status, asked):
    (step,) = ACTION["runs"]["steps"]
    given = inputs_of(step, {"results": "r", "baseline": "b", "metrics": metrics})
    done = shell(step, 'printf "%s\\n" "$@" > words', **given)
    assert done.returncode == status
    if asked:
        words = (shell.folder / "words").read_text().splitlines()
        assert words[words.index("--metric") + 1 : words.index("--max_drop")] == asked


def test_the_real_models_task_is_read():
    words = load_named_tasks(["real_words"], include=EXAMPLES / "real-model")["real_words"]
    assert (len(words.dataset["test"]), words.config.repeats) == (80, 4)


# Every limit is 2 seconds.
STAND_INS = {
    "python": """#!/usr/bin/env bash
case "$*" in
  "-c import torch"*) echo True ;;
  "-c"*) exit 0 ;;
  *pip*) echo "torch 2.13.0" ;;
  *gpu_long*) echo begun; exec sleep 60 ;;
  *kernels*) echo "no kernels here" >&2; exit 1 ;;
  *) echo "ran $*" ;;
esac
""",
    "nvidia-smi": "#!/bin/sh\necho 'NVIDIA H200, 580.1, 143771 MiB'\n",
    "timeout": '#!/bin/sh\nshift 2\nexec /usr/bin/timeout 2 "$@"\n',
}


def check_gpu(folder, call, **more):
    """What the script said, and the names in its archive."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name, text in STAND_INS.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    env = {"PATH": f"{tools}:/usr/bin:/bin", "PYTHON": str(tools / "python"), "TMPDIR": str(folder)} | more
    words = ["bash", str(ROOT / "scripts" / "gpu_check.sh"), call, str(folder / "out")]
    done = processes.run(words, env=env)
    archive = folder / "out" / f"gpu_check_{call}.tgz"
    if not archive.exists():
        return done, []
    with tarfile.open(archive) as packed:
        return done, sorted(packed.getnames())


@pytest.mark.parametrize("call", ["1", "2", "3"])
def test_every_part_ends_and_the_archive_has_all(tmp_path, call):
    done, names = check_gpu(tmp_path, call)
    parts = {"1": ["tests", "demo", "parts", "costs"], "2": ["long", "kernels"], "3": ["batches", "blocks"]}[call]
    assert [name for name in names if name.endswith(".txt")] == sorted(f"./{part}.txt" for part in ["machine", *parts])
    assert "NVIDIA H200" in done.stdout
    failed = {"1": None, "2": "long 124;kernels 1", "3": None}[call]  # it takes too long; it fails
    assert done.returncode == (0 if failed is None else 1) and (failed is None or f"failed: {failed}" in done.stdout)
    limits = [int(line.split("at most ")[1].split()[0]) for line in done.stdout.splitlines() if line.startswith("== ")]
    assert sum(limits) <= 600


def test_a_wrong_call_and_a_python_without_torch_or_a_gpu_are_one_line(tmp_path):
    hidden = {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    for call, said, more in (
        ("4", "1|2|3|vllm", {}),
        ("1", "'/bin/false' has no torch", {"PYTHON": "/bin/false"}),
        ("1", "sees no GPU", hidden),
    ):
        done, packed = check_gpu(tmp_path, call, **more)
        assert (done.returncode, done.stderr.count("\n"), packed) == (2, 1, []) and said in done.stderr
    assert not list((tmp_path / "out").rglob("*.t*"))


def test_no_two_commands_of_the_real_model_are_in_one_folder_at_a_time(tmp_path, monkeypatch):
    """The second pair has one part, which is still written when the first pair's rows are joined."""
    held, done = set(), []

    def run(*command, capture=False):
        if "--run_dir" in command:
            folder = command[command.index("--run_dir") + 1]
            assert folder not in held
            held.add(folder)
            (folder / command[command.index("--rows") + 1] / "samples").mkdir(parents=True, exist_ok=True)
            time.sleep(0.3 * (folder.name == "form2"))
            held.remove(folder)
            done.append((folder.name, capture))
        return ""

    monkeypatch.setattr(experiment, "run", run)
    monkeypatch.setattr(experiment, "AT_ONCE", 2)
    experiment.run_all(tmp_path, tmp_path / "weights", ["form1", "form2"], 2)
    assert sorted(done) == [("form1", False), ("form1", True), ("form2", False), ("form2", True), ("part1", True)]
    assert {*experiment.PAIRS["form1"][3]} <= {path.name for path in (tmp_path / "form1").iterdir()}


def test_calibrate_takes_the_methods_of_each_pair_of_the_real_model(parse):
    for _, _, _, parts in experiment.PAIRS.values():
        words = experiment.list_methods(parts)
        read = read_methods(parse("calibrate", "--prompts", "any", "--methods", *words))
        assert {"surprise", "ce"} <= {method.policy.score for method, _ in read} and len(read) == len(words)


def test_no_split_of_the_real_model_has_an_equation_a_name_or_a_new_kind_of_another(tmp_path):
    made.main(tmp_path)
    files = [tmp_path / f"{name}.jsonl" for name in made.SIZES]
    rows = {path.stem.rstrip("12"): [] for path in files} | {"test": list(made.load_test()["test"])}
    for path in files:
        rows[path.stem.rstrip("12")] += map(json.loads, path.read_text().splitlines())
    equations = {split: set() for split in rows}
    for split, row in ((split, row) for split, of in rows.items() for row in of):
        sums = re.findall(r"(\d+) ([-+*]) (-?\d+) = (-?\d+)", row["solution"])
        assert sums[-1][-1] == row["answer"] and row["solution"].endswith(f"\\boxed{{{row['answer']}}}.")
        for first, sign, second, result in sums:
            assert eval(first + sign + second) == int(result) and (split != "test" or int(result) >= 0)
            equations[split].add((sign, *((first, second) if sign == "-" else sorted((first, second)))))
    words = {split: set(f"{made.NAMES[split]} {made.THINGS[split]}".split()) for split in rows}
    for one, other in itertools.combinations(rows, 2):
        assert not equations[one] & equations[other] and not words[one] & words[other]
    kinds = {split: {row["kind"] for row in of} for split, of in rows.items()}
    assert kinds == {"train": (old := set(made.KINDS) - {*made.NEW_KINDS}), "calibration": old, "test": set(made.KINDS)}
    numbers = [(row["kind"], *re.findall(r"\d+", row["problem"])) for row in rows["test"]]
    assert len(set(numbers)) == len(numbers) == 80


def test_the_template_says_what_stands_at_each_token_of_an_answer():
    answer = "Alice has 11 + 12 = 23 keys. Together they have 11 + 23 = 34 keys. The answer is \\boxed{34}."
    spans = {
        "decision": ("Alice", "11", "+", "12", "Together", "The"),
        "result": ("23 keys", "34 keys", "34}"),
        "form": (" has", " they", " keys", ". ", " answer", "boxed"),
    }
    for expected, parts in spans.items():
        for part in parts:
            place = answer.index(part)
            token = re.match(r"\d|\W?\w*|\W", part)[0]
            assert label_token(answer[:place], token, token) == expected, part
    assert label_token("Alice has 11 ", "=", "+") == "decision"
    assert label_token("Alice has 11 + 12 = 2", "3", "4") == "result"


def test_positions_of_a_run_get_the_label_of_their_place_in_the_text(demo_runs, tmp_path):
    run = read_run_folder(demo_runs["guided"])
    (one, columns), tokenizer = next(iter(run.read_traces(["token_id"]))), run.load_tokenizer()
    tokens, (task, doc_id, sample) = columns["token_id"].tolist(), one.name
    rows = [(task, doc_id, sample, position, token, token) for position, token in enumerate(tokens)]
    names = ("task", "doc_id", "sample", "position", "host_token_id", "donor_token_id")
    (tmp_path / "effects.csv").write_text("\n".join(",".join(map(str, row)) for row in (names, *rows)))
    found = label_effects(demo_runs["guided"], tmp_path)["label"]
    texts = [tokenizer.decode(tokens[:place]) for place in range(len(tokens))]
    assert list(found) == [label_token(text, tokenizer.decode([token]), "") for text, token in zip(texts, tokens, strict=True)]
    assert len(set(found)) > 1

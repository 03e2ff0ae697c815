"""Under the stock `lm_eval`, as a command and in Python: options, seeds, signals, runs, their reports and their errors."""

import json
import logging
import re
import sys
from argparse import Namespace
from copy import deepcopy

import pytest
from helpers.one_line import one_line
from helpers.processes import run_code
from lm_eval import simple_evaluate
from lm_eval.api.task import ConfigurableTask
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from lm_eval_takeover import lm_eval_hooks
from lm_eval_takeover.errors import ArgumentError, CalibrationError
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.storage.files import make_component
from lm_eval_takeover.tasks.benchmarks import load_demo

COMMAND = ["lm_eval", "--model", "guided-takeover", "--tasks", "takeover_demo"]
SEEDS = ("random_seed", "numpy_random_seed", "torch_random_seed")


# What the model type learns of lm-eval


def observe(model=None, random_seed=0, numpy_random_seed=1234, torch_random_seed=1234, evaluation_tracker=None):
    """A stand-in with lm-eval's defaults; returns the seed that a model with an argument of `model` would take."""
    return {"config": {}, "seed": lm_eval_hooks.choose_seed(model)}


def test_the_seed_of_an_evaluation_is_torchs_and_0_where_none_was_given():
    observed = lm_eval_hooks.observe_evaluation(observe)
    for seeds, expected in (
        ({}, 0),
        ({"torch_random_seed": 7}, 7),
        ({"random_seed": 5}, 0),  # python's own seed draws none of our numbers
        (dict.fromkeys(SEEDS, 1234), 1234),  # `--seed 1234` is not lm-eval's default of 0,1234,1234
        (dict.fromkeys(SEEDS), 0),
    ):
        assert observed(**seeds)["seed"] == expected, seeds


def test_the_seed_argument_goes_before_lm_evals_and_says_so_where_they_differ(caplog):
    observed = lm_eval_hooks.observe_evaluation(observe)
    assert [observed(3, torch_random_seed=seed)["seed"] for seed in (1234, 3)] == [3, 3]
    assert not caplog.records
    assert observed(model=3, torch_random_seed=4)["seed"] == 3
    assert caplog.messages == ["seed=3 of the model arguments counts, not lm-eval's seed 4"]
    with pytest.raises(ZeroDivisionError):  # an evaluation that fails ends, too
        lm_eval_hooks.observe_evaluation(lambda random_seed=7, numpy_random_seed=7, torch_random_seed=7: 1 / 0)()
    assert lm_eval_hooks.choose_seed(None) == 0


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"samples": "none.json"}, ArgumentError, "--samples 'none.json' is no file; expected JSON"),
        (
            {"model_args": {"base": "nosuch/model"}},
            ArgumentError,
            "base='nosuch/model' cannot be loaded: it is neither a folder",
        ),
        ({"model_args": {"calibration": "my-pair.json"}}, CalibrationError, "'my-pair.json' is neither a file"),
        ({"gen_kwargs": {"temperature": "warm"}}, ArgumentError, "could not convert string to float: 'warm'"),
        ({"include_path": "no-tasks"}, ArgumentError, "--include_path 'no-tasks' is not a folder of task files"),
        ({"limit": -1}, ArgumentError, "--limit -1 is not above 0: give a number of documents, or a share below 1"),
        ({"use_cache": "db"}, ArgumentError, "--use_cache 'db': lm-eval's cache knows prompts and no models"),
        ({"output_path": f"{__file__}/out/x.json"}, ArgumentError, f"'{__file__}' is no folder, so no results could be saved"),
        ({"tasks": "takeover_dmo"}, ArgumentError, "--tasks takeover_dmo is not known; did you mean 'takeover_demo'?"),
        ({"tasks": ["takeover_demo"], "num_fewshot": 3}, ArgumentError, "--num_fewshot 3: takeover_demo has no examples"),
        ({"model_args": {"enable_thinking": False}}, ArgumentError, "enable_thinking=False is read with --apply_chat_template"),
        ({"device": "mps"}, ArgumentError, "device='mps': torch 2"),
        ({"device": "cuda:77"}, ArgumentError, "device='cuda:77': torch"),
    ],
)
def test_errors_in_the_commands_options_are_known_before_lm_eval_does_anything(given, error, text):
    unset = {"batch_size": None, "max_batch_size": None, "device": None, "model_args": None}
    with one_line(error, text):
        lm_eval_hooks.check_options(Namespace(**unset | given))


@pytest.mark.parametrize("model_args", ["{spike_ration: 0.1}", "{policy: gues}"])
def test_a_config_file_is_checked_as_options_are(tmp_path, model_args):
    config = tmp_path / "run.yaml"
    config.write_text(f"model: guided-takeover\nmodel_args: {model_args}\n")
    with pytest.raises(ArgumentError, match=r"spike_ratio|guide"):
        lm_eval_hooks.check_options(Namespace(config=str(config), model_args=None))
    config.write_text(f"model: hf\nmodel_args: {model_args}\n")
    lm_eval_hooks.check_options(Namespace(config=str(config), model_args=None))


def test_only_the_command_without_a_device_option_has_a_default_device():
    for words, device, expected in (
        (COMMAND, "cuda:0", True),
        ([*COMMAND, "--device", "cuda:0"], "cuda:0", False),
        ([*COMMAND, "--device=cuda:0"], "cuda:0", False),
        (["a_script.py"], "cuda:0", False),
        (COMMAND, "cuda:1", False),
    ):
        sys.argv = words
        assert lm_eval_hooks.is_default_device(device) is expected, words


# The command


def test_ctrl_c_during_imports_is_one_line():
    done = run_code(f"""
import sys
class Interrupt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "lm_eval._cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt)
sys.argv = {COMMAND!r}
from lm_eval.__main__ import cli_evaluate
""")
    assert (done.returncode, done.stderr) == (130, "stopped; nothing was written\n")


def test_a_mistake_is_told_before_anything_heavy_is_imported():
    """Several in one process; the last one ends it."""
    mistakes = {
        "--model_args spike_ration=0.1": "unknown model argument 'spike_ration'; did you mean 'spike_ratio'?",
        "--model_args base=/tmp/nothere": "base='/tmp/nothere' cannot be loaded: there is no such folder; give one, or a hub id",
        "--gen_kwargs temprature=0.2": "generation setting 'temprature=0.2' is not known; did you mean 'temperature'?",
    }
    done = run_code(f"""
import atexit, sys
heavy = ("torch", "transformers", "datasets", "lm_eval.evaluator")
atexit.register(lambda: print([name for name in heavy if name in sys.modules]))
from lm_eval.__main__ import cli_evaluate
for number, words in enumerate({[*mistakes]!r}):
    sys.argv = [*{COMMAND!r}, *words.split()]
    try:
        cli_evaluate()
    except ValueError as error:
        if number == 2:
            raise
        print(f"error: {{error}}", file=sys.stderr)
""")
    assert (done.returncode, done.stdout) == (2, "[]\n")
    assert done.stderr.splitlines() == [f"error: {line}" for line in mistakes.values()]


def test_the_plain_command_runs_the_demo_task_and_reports_the_takeover(forked, tmp_path):
    words = [*COMMAND[1:], "--limit", "1", "--batch_size", "8", "--output_path", tmp_path, "--log_samples"]
    done = forked.run("lm_eval", *words, cwd=tmp_path)  # where git would complain
    assert "fatal" not in done.stderr, done.stderr
    assert all(f"|{name}" in done.stdout for name in ("takeover_demo|", "acc", "pass@8", "maj@8", "no_answer"))
    assert not any(f"|{name}" in done.stdout for name in ("pass@1 ", "restated", "unparsed", "timed_out", "unclosed_think"))
    (path,) = (tmp_path / "demo-base+demo-guide-disagreement").glob("results_*.json")
    results = json.loads(path.read_text())
    assert {"pass@1,all", "restated,all"} <= results["results"]["takeover_demo"].keys()
    takeover = results["config"]["takeover"]
    closing = f"{takeover['label']}: realized rate {takeover['realized_rate']:.2%}"
    told = rf"^\S+ INFO +\[lm_eval_takeover\S+ {re.escape(closing)} .* tokens\), .* passes of"
    assert re.search(told, done.stderr, re.MULTILINE)
    assert takeover["per_task"]["takeover_demo"]["tokens"] == takeover["tokens"] > 0
    assert 0 < takeover["realized_rate"] < 0.1
    (samples,) = tmp_path.rglob("samples_takeover_demo_*.jsonl")
    assert [len(json.loads(line)["resps"][0]) for line in samples.read_text().splitlines()] == [8]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("guided-takeover --tasks no_such_task", "`lm_eval ls tasks` lists them"),
        (
            'guided-takeover --tasks takeover_demo --limit 3 --samples {"takeover_demo":[1]}',
            "error: If --samples is not None, then",
        ),
        ("hf --tasks takeover_demo --model_args pretrained=no/such-model", None),
    ],
)
def test_an_error_of_the_user_is_one_line_and_status_2_and_errors_of_others_keep_their_traceback(forked, words, text):
    done = forked.run("lm_eval", "--model", *words.split(), status=2 if text else 1)
    line = done.stderr.strip().splitlines()[-1]
    assert ("Traceback" in done.stderr) == (text is None)
    assert text is None or (line.startswith("error: ") and text in line)


# Evaluations in this process


TASK = {
    "task": "puzzles", "custom_dataset": load_demo, "test_split": "test", "output_type": "generate_until", "repeats": 8,
    "doc_to_text": "{{problem}}", "doc_to_target": "{{answer}}", "metric_list": [{"metric": "exact_match"}],
    "generation_kwargs": {"do_sample": True, "temperature": 0.6, "max_gen_toks": 24, "until": []},
}  # fmt: skip


def run(model="guided-takeover", **options):
    """Two problems, 8 samples each of 24 tokens; without our own verification, whose processes take seconds."""
    settings = {"limit": 2, "bootstrap_iters": 0, "task_manager": TaskManager(include_defaults=False)}
    return simple_evaluate(model=model, tasks=[ConfigurableTask(config=deepcopy(TASK))], **(settings | options))


def test_a_model_that_is_used_twice_reports_each_evaluation_and_takes_its_seed(tmp_path):
    lm = GuidedTakeover(policy="base", batch_size=16, run_dir=str(tmp_path))
    found = [run(lm, torch_random_seed=seed) for seed in (1234, 5, 1234)]
    texts = [[sample["resps"] for sample in one["samples"]["puzzles"]] for one in found]
    assert texts[0] == texts[2] != texts[1]
    reports = [one["config"]["takeover"] for one in found]
    assert [report["seed"] for report in reports] == [0, 5, 0]
    assert reports[2]["tokens"] == reports[0]["tokens"]
    assert 0 < reports[1]["tokens"] <= 2 * 8 * 24
    assert lm.get_model_info()["takeover"]["tokens"] == reports[2]["tokens"]  # asked once more, it says the same
    lm.close()


def test_what_the_command_refuses_is_refused_in_python(tmp_path):
    for given, options, text in (
        (
            {},
            {"use_cache": str(tmp_path / "greedy")},
            r"--use_cache '.*_rank0.db': lm-eval's cache knows prompts and no models",
        ),
        ({}, {"apply_chat_template": "nosuch"}, "--apply_chat_template 'nosuch' is no template of the tokenizer of '.*'; it"),
        ({"enable_thinking": False}, {}, "enable_thinking=False is read with --apply_chat_template; give both or none"),
    ):
        with pytest.raises(ArgumentError, match=text):
            run(model_args={"policy": "base", **given}, **options)


def test_a_run_has_a_label_that_names_its_folder_and_its_cost(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="lm_eval")
    tracker, label = EvaluationTracker(output_path=str(tmp_path)), "cheap/first try"
    arguments = {"policy": "random", "rate": 0.5, "batch_size": "auto", "max_batch_size": 7, "model": label}
    results = run(model_args=arguments, evaluation_tracker=tracker, gen_kwargs="max_new_tokens=3")
    takeover = results["config"]["takeover"]
    assert takeover["label"] == label and takeover["tokens"] <= 2 * 8 * 3  # the command line goes before the task file
    messages = [record.message for record in caplog.records if record.name.startswith("lm_eval_takeover")]
    assert re.search(r"^batch_size=auto: 7 samples of up to \d+ tokens at a time$", "\n".join(messages), re.MULTILINE)
    assert results["config"]["batch_sizes"] == [7]  # which lm-eval prints above its table
    tracker.save_results_aggregated(results=results, samples=results["samples"])
    (folder,) = tmp_path.iterdir()
    assert folder.name == make_component(label)
    assert [file.name[:8] for file in folder.iterdir()] == ["results_"]


def test_a_run_that_misses_its_rate_says_so_at_its_end_and_in_what_it_differs(caplog):
    """In texts that end at the first decision, and in another template."""
    results = run(GuidedTakeover(target_rate=0.05, batch_size=16), limit=3, gen_kwargs="top_p=0.95")
    takeover = results["config"]["takeover"]
    differences = "its prompts are in another template; its texts are shorter (24 tokens, 168 there)"
    rate = takeover["realized_rate"]
    assert abs(rate - 0.05) > 0.01 and "; ".join(takeover["differs_from_calibration"]) == differences
    line = f"{takeover['label']}: 5.0% of the tokens were asked for, and {rate:.1%} were taken over"
    scores = f"mean score {takeover['mean_score']:.3g} nats, {takeover['spike_share']:.1%} above tau"
    assert f"{line}; {scores}; against its calibration 'demo': {differences}" in caplog.text


def test_a_resumed_run_says_what_it_has_on_a_line_of_its_own_before_the_bar(tmp_path, capsys):
    arguments = {"policy": "base", "batch_size": 16, "run_dir": str(tmp_path)}
    run(model_args=arguments, limit=1)
    capsys.readouterr()
    logging.getLogger("lm_eval_takeover").addHandler(logging.StreamHandler(sys.stderr))  # given back
    run(model_args=arguments, limit=3)
    notice = f"run_dir='{tmp_path}': 8 of 24 samples are finished already; 16 are left to write\n"
    before, _, after = capsys.readouterr().err.partition(notice)
    assert before == "" or before.endswith("\n")
    bar = after.split("Running generate_until requests:")
    assert "8/24" in bar[1]
    assert "24/24" in bar[-1] and "8 samples from before" in bar[-1]
    GuidedTakeover(**arguments).close()

"""What the model type learns of lm-eval: seeds, the command's options before slow imports, signals, where notices go."""

import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from helpers.one_line import one_line
from helpers.processes import environment

from lm_eval_takeover import lm_eval_hooks, stopping
from lm_eval_takeover.errors import ArgumentError, CalibrationError

COMMAND = ["lm_eval", "--model", "guided-takeover", "--tasks", "takeover_demo"]
SEEDS = ("random_seed", "numpy_random_seed", "torch_random_seed")


def evaluate(model=None, random_seed=0, numpy_random_seed=1234, torch_random_seed=1234, evaluation_tracker=None):
    """A stand-in with lm-eval's defaults; returns the seed that a model with an argument of `model` would take."""
    return {"config": {}, "seed": lm_eval_hooks.choose_seed(model)}


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ({}, 0),
        ({"torch_random_seed": 7}, 7),
        ({"torch_random_seed": None}, 0),
        ({"random_seed": 5}, 0),  # python's own seed draws none of our numbers
        (dict.fromkeys(SEEDS, 0), 0),
        (dict.fromkeys(SEEDS, 1234), 1234),  # `--seed 1234` is not lm-eval's default of 0,1234,1234
        (dict.fromkeys(SEEDS), 0),
    ],
)
def test_the_seed_of_an_evaluation_is_torchs_and_0_where_none_was_given(seeds, expected):
    assert lm_eval_hooks.observe_evaluation(evaluate)(**seeds)["seed"] == expected


def test_the_seed_argument_goes_before_lm_evals_and_says_so_where_they_differ(caplog):
    observed = lm_eval_hooks.observe_evaluation(evaluate)
    assert [observed(3, torch_random_seed=seed)["seed"] for seed in (1234, 3)] == [3, 3]
    assert not caplog.records
    assert observed(model=3, torch_random_seed=4)["seed"] == 3
    assert caplog.messages == ["seed=3 of the model arguments counts, not lm-eval's seed 4"]


def test_an_evaluation_ends_with_its_call_even_if_it_fails():
    def fail(random_seed=0, numpy_random_seed=1234, torch_random_seed=1234):
        assert lm_eval_hooks.get_evaluation().seed is None
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lm_eval_hooks.observe_evaluation(fail)()
    assert lm_eval_hooks.get_evaluation() is None
    assert lm_eval_hooks.choose_seed(None) == 0


def options(**given):
    return Namespace(**{"batch_size": None, "max_batch_size": None, "device": None, "model_args": None} | given)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"samples": "none.json"}, ArgumentError, "--samples 'none.json' is no file; expected JSON"),
        ({"model_args": {"base": "~no-such/x"}}, ArgumentError, "base='~no-such/x' cannot be loaded: there is no"),
        ({"model_args": {"calibration": "my-pair.json"}}, CalibrationError, "'my-pair.json' is neither a file"),
        ({"gen_kwargs": {"temperature": "warm"}}, ArgumentError, "could not convert string to float: 'warm'"),
        ({"include_path": "no-tasks"}, ArgumentError, "--include_path 'no-tasks' is not a folder of task files"),
        ({"limit": -1}, ArgumentError, "--limit -1 is not above 0: give a number of documents, or a share below 1"),
        ({"use_cache": "db"}, ArgumentError, "--use_cache 'db': lm-eval's cache knows prompts and no models"),
        ({"output_path": __file__}, ArgumentError, f"'{__file__}' is no folder, so no results could be saved"),
        ({"output_path": f"{__file__}/out/x.json"}, ArgumentError, f"'{__file__}' is no folder, so no results could be saved"),
        ({"tasks": "takeover_dmo"}, ArgumentError, "--tasks takeover_dmo is not known; did you mean 'takeover_demo'?"),
        ({"tasks": ["takeover_demo"], "num_fewshot": 3}, ArgumentError, "--num_fewshot 3: takeover_demo has no examples"),
        ({"model_args": {"enable_thinking": False}}, ArgumentError, "enable_thinking=False is read with --apply_chat_template"),
        (
            {"model_args": {"base": "nosuch/model"}},
            ArgumentError,
            "base='nosuch/model' cannot be loaded: it is neither a folder",
        ),
        ({"device": "mps"}, ArgumentError, "device='mps': torch 2"),
        pytest.param(
            {"device": "cuda:0"},
            ArgumentError,
            "device='cuda:0': torch finds no GPU; give cpu",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_errors_in_the_commands_options_are_known_before_lm_eval_does_anything(given, error, text):
    with one_line(error, text):
        lm_eval_hooks.check_options(options(**given))


@pytest.mark.parametrize(
    ("words", "device", "expected"),
    [
        (COMMAND, "cuda:0", True),
        ([*COMMAND, "--device", "cuda:0"], "cuda:0", False),
        ([*COMMAND, "--device=cuda:0"], "cuda:0", False),
        (["a_script.py"], "cuda:0", False),
        (COMMAND, "cuda:1", False),
        (COMMAND, None, False),
    ],
)
def test_only_the_command_without_a_device_option_has_a_default_device(words, device, expected):
    sys.argv = words
    assert lm_eval_hooks.is_default_device(device) is expected


def test_git_does_not_complain_outside_a_repository(tmp_path, capfd, monkeypatch):
    from lm_eval import evaluator

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    evaluator.get_git_commit_hash()
    subprocess.run([sys.executable, "-c", "import sys; print('heard', file=sys.stderr)"], check=True)
    assert capfd.readouterr().err == "heard\n"


def test_a_stop_is_found_in_what_it_was_wrapped_into():
    stop = KeyboardInterrupt()
    wrapped = RuntimeError("Error calling __set_name__")
    wrapped.__cause__ = stop
    assert stopping.find_stop(wrapped) is stop
    assert stopping.find_stop(stop) is stop
    assert stopping.find_stop(ValueError()) is None


INTERRUPTED = """
import sys
class Interrupt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "lm_eval._cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt)
sys.argv = {words!r}
from lm_eval.__main__ import cli_evaluate
cli_evaluate()
"""


@pytest.mark.slow
def test_ctrl_c_during_imports_is_one_line():
    code = INTERRUPTED.format(words=COMMAND)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 130
    assert done.stderr == "stopped; nothing was written\n"


@pytest.mark.slow
def test_a_mistake_is_told_before_anything_heavy_is_imported():
    """Several in one process; the last one ends it."""
    mistakes = {
        "--model_args spike_ration=0.1": "unknown model argument 'spike_ration'; did you mean 'spike_ratio'?",
        "--model_args base=/tmp/nothere": "base='/tmp/nothere' cannot be loaded: there is no such folder",
        "--gen_kwargs temprature=0.2": "generation setting 'temprature=0.2' is not known; did you mean 'temperature'?",
    }
    code = f"""
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
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout) == (2, "[]\n")
    assert done.stderr.splitlines() == [f"error: {line}" for line in mistakes.values()]


@pytest.mark.parametrize("model_args", ["{spike_ration: 0.1}", "{policy: gues}"])
def test_a_config_file_is_checked_as_options_are(tmp_path, model_args):
    config = tmp_path / "run.yaml"
    config.write_text(f"model: guided-takeover\nmodel_args: {model_args}\n")
    with pytest.raises(ArgumentError, match=r"spike_ratio|guide"):
        lm_eval_hooks.check_options(Namespace(config=str(config), model_args=None))
    config.write_text(f"model: hf\nmodel_args: {model_args}\n")
    lm_eval_hooks.check_options(Namespace(config=str(config), model_args=None))

"""Which texts are problems of a benchmark, and that a calibration measured on one is not run on it."""

import json
import sys

import pytest
from helpers.pairs import ROOT
from helpers.processes import run

from lm_eval_takeover.demo import PROMPT, calibration_prompts, problems
from lm_eval_takeover.errors import CalibrationError
from lm_eval_takeover.tasks.known_problems import DIGESTS, problem_digest, refuse_calibrated_tasks, words


def test_words_are_what_is_compared():
    assert words("Let $x^2 = 4$. FIND  x!") == words("let x^2=4 find ｘ")
    assert problem_digest("Let $x$ be 3.") == problem_digest("let x be 3")


@pytest.mark.parametrize(
    ("task", "prompt"),
    [
        ("takeover_gsm8k", "What is the time?"),
        ("takeover_gsm8k_100", "What is the time?"),
        ("my_own", PROMPT.format(problem=problems()[3]["problem"])),
        ("my_own", "<|im_start|>user\nThink first. " + problems()[3]["problem"].upper()),
    ],
)
def test_a_run_on_the_benchmark_is_refused_by_its_name_or_its_problems(task, prompt):
    asked = [("takeover_math500", calibration_prompts()[0]), (task, prompt)]
    told = rf"calibration 'mine' was measured on problems of \w+ .*and task {task} asks them"
    with pytest.raises(CalibrationError, match=told):
        refuse_calibrated_tasks("mine", ("takeover_gsm8k", "takeover_demo"), asked)


def test_other_tasks_pass():
    asked = [("takeover_math500", calibration_prompts()[0]), ("takeover_gsm8kk", "What is the time?")]
    refuse_calibrated_tasks("mine", ("takeover_gsm8k", "takeover_demo"), asked)
    refuse_calibrated_tasks("mine", (), [("takeover_demo", problems()[0]["problem"])])


def test_packaged_digests_are_those_of_the_open_benchmarks(hub, tmp_path):
    from serve_hub import environment

    script = "import sys, json; sys.path.insert(0, 'scripts'); import digest_test_problems as d; print(json.dumps(d.digests()))"
    done = run([sys.executable, "-c", script], env=environment(hub.url, str(tmp_path / "hf-home")), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads(DIGESTS.read_text())
    assert [len(found[f"takeover_{name}"]) for name in ("math500", "gsm8k", "amc23", "olympiadbench", "aime24", "aime25")] == [
        500, 1319, 40, 674, 30, 30
    ]  # fmt: skip

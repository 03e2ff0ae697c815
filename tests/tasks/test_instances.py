"""What a request asks, and which texts are problems of a benchmark."""

import json
import sys

import pytest
from helpers.one_line import one_line
from helpers.pairs import ROOT
from helpers.processes import run

from lm_eval_takeover.demo import PROMPT, calibration_prompts, problems
from lm_eval_takeover.errors import ArgumentError, CalibrationError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.tasks.instances import LENGTHS, cut_to_context, list_rolling_windows, read_generation_settings
from lm_eval_takeover.tasks.known_problems import DIGESTS, problem_digest, refuse_calibrated_tasks, words


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"until": "x"}, (Sampling(), ("x",), 256)),
        ({"temperature": 0.7, "top_k": 5, "max_new_tokens": 9}, (Sampling(0.7, 1.0, 5), (), 9)),
        ({"do_sample": False, "temperature": 0.0}, (Sampling(), (), 256)),
        ({"temperature": 0.7, "min_p": 0.1}, (Sampling(0.7, min_p=0.1), (), 256)),
        # as model cards print them
        (
            {"temperature": 0.7, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0.0, "frequency_penalty": "0"},
            (Sampling(0.7), (), 256),
        ),
        *(({"max_gen_toks": 99, name: 9}, (Sampling(), (), 9)) for name in LENGTHS[1:]),  # the command line's stands behind
        ({"max_new_tokens": 99, "max_gen_toks": 9, "max_tokens": None}, (Sampling(), (), 9)),
    ],
)
def test_generation_settings_are_read_as_hf_reads_them(settings, expected):
    assert read_generation_settings(settings, 256) == expected


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"do_sample": True, "temperature": 0.0}, "temperature=0 with do_sample=True"),
        ({"do_sample": True, "temperature": -1}, "temperature=-1.0"),
        ({"max_gen_toks": 0}, "max_gen_toks=0 is not at least 1 token"),
        ({"max_gen_toks": -5}, "max_gen_toks=-5"),
        ({"max_gen_toks": "many"}, "cannot be read"),
        ({"max_gen_toks": float("inf")}, "cannot be read"),
        ({"temperature": 1e-50}, "temperature=1e-50 is neither 0"),
        ({"temperatur": 1}, "generation setting 'temperatur=1' is not known; did you mean 'temperature'?"),
        ({"num_beams": 4}, "num_beams=4"),
        ({"repetition_penalty": 1.05}, "generation setting 'repetition_penalty=1.05' is not known"),
        ({"presence_penalty": 1.5}, "generation setting 'presence_penalty=1.5' is not known"),
        ({"frequency_penalty": "some"}, "cannot be read"),
        ({"temperature": 1, "min_p": 1.5}, "min_p=1.5 is outside [0, 1]"),
        ({"until": [1]}, r"until=[1] is not a list of texts"),
    ],
)
def test_impossible_generation_settings_are_refused(settings, text):
    with one_line(ArgumentError, text):
        read_generation_settings(settings, 256)


def test_every_token_of_a_long_text_is_in_one_continuation():
    texts = [list(range(10, 33)), [], [7]]
    windows = list_rolling_windows(texts, prefix=0, max_length=8)
    for index, tokens in enumerate(texts):
        mine = [(context, continuation) for owner, context, continuation in windows if owner == index]
        assert [token for _, continuation in mine for token in continuation] == tokens
        assert all(len(context) + len(continuation) <= 8 + 1 for context, continuation in mine)
        assert all(context for context, _ in mine)


def test_texts_are_cut_from_the_left_and_the_last_token_is_only_predicted(caplog):
    texts = [([1, 2, 3], [4, 5]), ([], [4]), ([1], []), ([1, 2, 3, 4], [5, 6]), ([1], [2, 3, 4, 5, 6])]
    assert cut_to_context(texts, prefix=0, max_length=4) == {
        0: ([1, 2, 3], [4, 5]),
        1: ([0], [4]),
        3: ([2, 3, 4], [5, 6]),
        4: ([2], [3, 4, 5, 6]),
    }
    assert "2 of 5 texts are longer than the context of 4 tokens; truncated from the left" in caplog.text


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

"""Options of `compare`: what is wrong whatever the models are is one line before anything runs."""

import pytest
from helpers.one_line import one_line

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, TakeoverError


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--rows", "bsae"], "--rows 'bsae' is not known; did you mean 'base'?"),
        (["--rows", "base@0.1"], "--rows base: the base alone has neither rates nor arguments"),
        (["--rows", "ce@0.1:2"], "--rows 'ce@0.1:2': '2' is no rate"),
        (["--rows", "ce:tau=1@0.1"], "its arguments set already how many tokens are taken over"),
        (["--rows", "ce:lenght=3"], "unknown model argument 'lenght'"),
        (["--rows", "ce,ce"], "--rows names ce twice"),
        (["--rows", "thinking"], "--rows 'thinking': thinking=MODEL names a model"),
        (["--rows", "js:score_top_p=0.95:spike_ratio=0.1"], "score_top_p=0.95 needs target_rate=…"),
        (["--model_args", "run_dir=x"], "--model_args run_dir=… is set by compare itself"),
        (["--model_args", "tau=1", "--rates", "0.1"], "--rates would be ignored beside tau=…"),
        (["--model_args", "tau=1", "--rows", "top1@0.1"], "tau=1.0: score=top1 is 0 or 1 and has no threshold"),
        (["--model_args", "tau=1", "--target_rate", "0.1"], "so target_rate=0.1 would be ignored"),
        (["--target_rate", "0"], "target_rate=0.0 is outside 0..1"),
        (["--base", str(DEMO["base"])], "--base and --guide go together"),
        (["--prompts", "nothing.jsonl"], "--prompts 'nothing.jsonl' does not exist; expected a JSONL file"),
        (["--calibration", "demo", "--target_rate", "0.07"], "'demo' was not solved for target_rate=0.07 with ce"),
        (["--calibration", "demo", "--rows", "base,lossy@0.02"], "calibrate --prompts "),
        (["--limit", "0"], "--limit 0 is not a number above 0"),
        (["--batch_size", "many"], "batch_size=many is neither 'auto' nor a whole number"),
    ],
)
def test_wrong_calls_are_one_line_before_anything_runs(read_options, words, text):
    with one_line(TakeoverError, text):
        read_options(*words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--tasks", "takeover_demmo"], "--tasks 'takeover_demmo' is not known; did you mean 'takeover_demo'"),
        (["--tasks", "takeover_demo", "--gen_kwargs", "temperature=hot"], "could not convert string to float: 'hot'"),
    ],
)
def test_wrong_tasks_and_decoding_are_said_before_models_are_loaded(harness, tmp_path, words, text):
    with pytest.raises(ArgumentError, match=text):
        main(["compare", *words, "--run_dir", str(tmp_path)])
    assert not harness.started

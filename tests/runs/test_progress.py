"""The bar of a run: tokens long before samples, and what an earlier attempt finished in no speed."""

import re
import time

import numpy as np
import pytest
from helpers.run_dirs import make_sample

from lm_eval_takeover.decoding.engine import generate
from lm_eval_takeover.method.policies import Random
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.runs.progress import Progress


def test_tokens_are_shown_before_a_sample_is_finished_and_earlier_samples_are_in_no_speed(capsys):
    sample = make_sample(1)
    with Progress(10, 4, quiet=True) as silent:
        time.sleep(1.0)
        silent.count_tokens(1200)
        silent.finish(sample)
    assert capsys.readouterr().err == ""
    started = time.perf_counter()
    with Progress(10, 4, quiet=False) as bar:
        time.sleep(1.0)
        bar.count_tokens(1200)
        first = capsys.readouterr().err.rpartition("\r")[2]
        speed = re.fullmatch(r"1,200 tokens, ([\d,]+)/s, 4 samples from before", bar.describe())[1]
        assert 1200 / (time.perf_counter() - started) - 1 < int(speed.replace(",", "")) <= 1200
        bar.finish(sample)
        assert (
            f"/s, realized rate {sample.takeovers / sample.tokens:.1%} of finished samples, 4 samples from before"
            in bar.describe()
        )
    assert "4/10" in first and "1,200 tokens" in first and "5/10" in capsys.readouterr().err.rpartition("\r")[2]


@pytest.mark.parametrize("block_size", [1, "auto"])
def test_every_engine_counts_each_token_as_it_is_emitted(block_size, demo_pair, prompts):
    requests = [Request(prompt, 0, 20, Sampling(0.6, 0.95)) for prompt in prompts]
    counted, at_first = [], None
    made = []
    options = {"batch_size": 4, "block_size": block_size, "count_tokens": lambda *counts: counted.append(counts)}
    for _, generation in generate(demo_pair, Random(rate=0.3), requests, **options):
        at_first = sum(count for count, _ in counted) if at_first is None else at_first
        made.append((len(generation.tokens), generation.takeovers))
    assert np.sum(counted, axis=0).tolist() == np.sum(made, axis=0).tolist()
    assert at_first > made[0][0]  # others were under way when the first one finished


def test_the_rate_is_that_of_unfinished_texts_too():
    """Short texts end first. If they have more takeovers, the rate of finished samples is too high until the end."""
    with Progress(2, quiet=True) as bar:
        bar.count_tokens(10, 5)
        bar.count_tokens(90, 0)
        assert "realized rate 5.0%" in bar.describe() and "finished" not in bar.describe()

"""The bar of a run: tokens long before samples, and what an earlier attempt finished in no speed."""

import pytest
from helpers.run_dirs import make_sample

from lm_eval_takeover.decoding.engine import generate
from lm_eval_takeover.method.policies import Random
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.runs import progress
from lm_eval_takeover.runs.progress import Progress


class Clock:
    now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_tokens_and_their_speed_are_shown_before_a_sample_is_finished(clock, capsys):
    with Progress(10, 0, quiet=False) as bar:
        clock.now += 4
        bar.count_tokens(1200)
        assert "0/10" in capsys.readouterr().err.rpartition("\r")[2]
        assert bar.describe() == "1,200 tokens, 300/s"
    assert "1,200 tokens, 300/s" in capsys.readouterr().err


def test_what_was_finished_before_counts_as_done_and_in_no_speed(clock, capsys):
    with Progress(10, 4, quiet=False) as bar:
        clock.now += 2
        bar.count_tokens(50)
        sample = make_sample(1)
        bar.finish(sample)
        rate = f"{sample.takeovers / sample.tokens:.1%}"
        assert bar.describe() == f"50 tokens, 25/s, realized rate {rate}, 4 samples from before"
    assert "5/10" in capsys.readouterr().err.rpartition("\r")[2]


def test_a_quiet_bar_prints_nothing(capsys):
    with Progress(3, 1, quiet=True) as bar:
        bar.count_tokens(5)
        bar.finish(make_sample(1))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("block_size", [1, "auto"])
def test_every_engine_counts_each_token_as_it_is_emitted(block_size, demo_pair, prompts):
    requests = [Request(prompt, 0, 20, Sampling(0.6, 0.95)) for prompt in prompts]
    counted, at_first = [], None
    made = []
    options = {"batch_size": 4, "block_size": block_size, "count_tokens": counted.append}
    for _, generation in generate(demo_pair, Random(rate=0.3), requests, **options):
        at_first = sum(counted) if at_first is None else at_first
        made.append(len(generation.tokens))
    assert sum(counted) == sum(made)
    assert at_first > made[0]  # others were under way when the first one finished

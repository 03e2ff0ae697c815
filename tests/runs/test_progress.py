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


@pytest.mark.parametrize("quiet", [False, True])
def test_tokens_are_shown_before_a_sample_is_finished_and_earlier_samples_are_in_no_speed(quiet, monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with Progress(10, 4, quiet=quiet) as bar:
        clock.now += 4
        bar.count_tokens(1200)
        first = capsys.readouterr().err.rpartition("\r")[2]
        assert bar.describe() == "1,200 tokens, 300/s, 4 samples from before"
        sample = make_sample(1)
        bar.finish(sample)
        rate = f"{sample.takeovers / sample.tokens:.1%}"
        assert bar.describe() == f"1,200 tokens, 300/s, realized rate {rate}, 4 samples from before"
    last = capsys.readouterr().err.rpartition("\r")[2]
    assert ("4/10" in first and "1,200 tokens" in first and "5/10" in last) if not quiet else first == last == ""


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

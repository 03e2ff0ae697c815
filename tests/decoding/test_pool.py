"""Slots: how many `batch_size=auto` chooses, what goes on while memory is short, whose failures are."""

import logging

import pytest
import torch
from helpers.pairs import POLICIES, SAMPLED, look_before_passes, pass_as_on_a_gpu, record_graphs, save_random_model, texts
from lm_eval.api.instance import Instance

from lm_eval_takeover.decoding import blockwise, engine
from lm_eval_takeover.decoding.engine import cache_bytes, rows_that_fit
from lm_eval_takeover.decoding.stepwise import Stepwise
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.forward.self_check import verify_pass
from lm_eval_takeover.method.policies import BaseAlone
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair


def test_texts_are_prefilled_a_part_at_a_time(small_pair, prompts, monkeypatch):
    sizes, requests = [], [Request((number, *prompts[0] * 6)[:400], 0, 2, SAMPLED) for number in range(50)]
    look_before_passes(monkeypatch, lambda role, ids, reads_prompt: sizes.append(ids.numel() * reads_prompt))
    whole = dict(engine.generate(small_pair, BaseAlone(), requests, batch_size=50))
    assert 10_000 < max(sizes) <= 2**14 < sum(sizes)
    again = dict(engine.generate(small_pair, BaseAlone(), requests, batch_size=20))
    assert texts(whole) == texts(again)


@pytest.mark.parametrize(
    ("name", "block_size", "error"),
    [
        ("disagreement", 4, torch.OutOfMemoryError("CUDA out of memory")),
        ("random", 1, RuntimeError("DefaultCPUAllocator: can't allocate memory")),
    ],
)
def test_a_batch_that_was_halved_for_memory_goes_on_and_grows_back(
    small_pair, prompts, monkeypatch, caplog, name, block_size, error
):
    """No token is written twice. Once the rows that were too many are finished, a batch is as large as before."""
    requests = [Request(prompt, j, 24, SAMPLED) for prompt in prompts for j in range(4)]
    options = {"batch_size": 8, "block_size": block_size, "traced": True}
    expected, counts, sizes = dict(engine.generate(small_pair, POLICIES[name], requests, **options)), [], []

    def look(role, ids, reads_prompt):
        if role == "base" and not reads_prompt:
            sizes.append(len(ids))
            if len(ids) > 4 and 4 < len(sizes) < 12:
                raise error

    look_before_passes(monkeypatch, look)
    counting = {"count_tokens": lambda count, _: counts.append(count)}
    with caplog.at_level(logging.INFO):
        made = dict(engine.generate(small_pair, POLICIES[name], requests, **options, **counting))
    told = [record.message for record in caplog.records if "batch size" in record.message]
    assert told == ["out of memory; continuing with batch size 4", "trying batch size 8 again"]
    assert max(sizes[5:12]) == 4 and max(sizes[:5]) == max(sizes[12:]) == 8
    assert texts(made) == texts(expected)
    assert sum(counts) == sum(len(one.tokens) for one in made.values())
    for i, one in made.items():
        assert one.scores == pytest.approx(expected[i].scores, abs=1e-4, nan_ok=True)
        assert list(one.observed) == pytest.approx(list(expected[i].observed), rel=1e-3, abs=1e-3, nan_ok=True)


def test_what_ends_in_a_step_that_fails_is_kept(small_pair, prompts, monkeypatch):
    requests = [Request(prompts[0], j, 1 if j < 2 else 6, SAMPLED) for j in range(4)]
    expected = texts(engine.generate(small_pair, BaseAlone(), requests, batch_size=4))
    errors, plain = [RuntimeError("all at once"), torch.OutOfMemoryError("CUDA out of memory")], Stepwise.advance

    def advance(self, slots):
        plain(self, slots)
        if self.pool.finished and errors:
            raise errors.pop()

    monkeypatch.setattr(Stepwise, "advance", advance)
    made = list(engine.generate(small_pair, BaseAlone(), requests, batch_size=4))
    assert not errors
    assert sorted(i for i, _ in made) == [0, 1, 2, 3]
    assert {i: g.tokens for i, g in made} == expected


def test_log_likelihoods_go_on_with_fewer_texts_where_memory_runs_out(monkeypatch, caplog):
    lm = GuidedTakeover(tau=1.0, batch_size=16)
    pairs = [("Problem: how far?", f" {number} steps") for number in range(10)]
    asked = [Instance("loglikelihood", {}, pair, 0, metadata=("t", 0, 1)) for pair in pairs]
    expected = lm.loglikelihood(asked, disable_tqdm=True)

    def look(role, ids, reads_prompt):
        if len(ids) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    look_before_passes(monkeypatch, look)
    found = lm.loglikelihood(asked, disable_tqdm=True)
    assert found == [(pytest.approx(log_prob, abs=1e-4), greedy) for log_prob, greedy in expected]
    assert "continuing with batch size 2" in caplog.text


def test_the_tail_of_a_run_computes_few_slots(small_pair, prompts, monkeypatch):
    """With static tensors, as on a GPU: one straggler is not computed beside 15 empty slots."""
    runs = record_graphs(monkeypatch)
    pass_as_on_a_gpu(small_pair, monkeypatch)
    requests = [Request(prompts[0], j, 40 if j == 3 else 6, SAMPLED) for j in range(16)]
    list(blockwise.generate(small_pair, BaseAlone(), requests, batch_size=16))
    rows = [run[1] for run in runs]
    assert rows[0] == 16 and rows[-1] == 1


def test_a_pass_reads_the_columns_of_its_rows_and_not_of_the_longest_text_ever(small_pair, prompts, monkeypatch):
    """A text of 400 tokens stands first; the ones behind it are read in 256 columns again, by graphs of few sizes."""
    runs = record_graphs(monkeypatch)
    passes = pass_as_on_a_gpu(small_pair, monkeypatch)
    requests = [Request(prompts[0] * 6, 0, 40, SAMPLED), *(Request(prompts[0], j, 40, SAMPLED) for j in range(2))]
    list(blockwise.generate(small_pair, POLICIES["disagreement"], requests, batch_size=1))
    graphs, _, _, columns = zip(*runs, strict=True)
    assert set(columns) == {256, 384} and list(columns) == sorted(columns, reverse=True)
    assert len(set(graphs)) == len(passes)  # what the first text has allocated serves the others


@pytest.mark.parametrize("name", ["disagreement", "guide"])
def test_no_draft_is_longer_than_what_is_captured(small_pair, prompts, monkeypatch, name):
    """A longer one would be read eagerly, launch by launch."""
    pass_as_on_a_gpu(small_pair, monkeypatch)
    for member in small_pair.members:
        verify_pass(member)  # whose check reads eagerly, too
    monkeypatch.setattr("lm_eval_takeover.forward.forward_pass.longest_draft", lambda rows, vocab, device: 5)
    read = []  # eagerly
    look_before_passes(monkeypatch, lambda role, ids, reads_prompt: read.append(reads_prompt))
    requests = [Request(prompt, 0, 20, SAMPLED) for prompt in prompts[:2]]
    list(blockwise.generate(small_pair, POLICIES[name], requests, batch_size=2, block_size=40))
    assert read and all(read)  # prompts alone


def test_one_command_repeats_itself_in_bfloat16(prompts):
    """What goes into a pass follows from tokens, settings and shapes; a clock would let the load of the machine decide."""
    pair = Pair(*(Member(role, str(folder), dtype=torch.bfloat16) for role, folder in DEMO.items()))
    requests = [Request(prompt, j, 20, SAMPLED) for prompt in prompts[:3] for j in range(4)]

    def write():
        made = engine.generate(pair, POLICIES["disagreement"], requests, batch_size=8)
        return [(i, g.tokens, g.taken_over, g.guide_passes) for i, g in made]

    assert write() == write()


def test_the_bytes_of_a_token_are_those_of_keys_and_values(demo_pair, rough_pair):
    for member in (*demo_pair.members, *rough_pair.members):
        config = member.config
        assert cache_bytes(member) == 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4


def test_a_model_that_runs_in_lockstep_gets_the_most(tmp_path, machine):
    machine(available=1)
    member = Member("base", str(save_random_model(tmp_path / "m", vocab_size=544, seed=5, kind="mamba", state_size=4)))
    assert cache_bytes(member) is None
    assert rows_that_fit([member], 10, 512, 64) == 64


def test_longer_samples_are_fewer(demo_pair, machine):
    members = demo_pair.members
    machine(available=2**30)
    rows = [rows_that_fit(members, 10 + n, 512, 64) for n in (100, 5_000, 20_000, 10**7)]
    assert rows[0] == 64
    assert rows == sorted(rows, reverse=True)
    assert 1 < rows[2] < rows[1] < 64
    assert rows[3] == 1  # one sample is always tried
    per_row = 20_096 * sum(map(cache_bytes, members)) + 2 * 8 * 512 * 4
    assert rows[2] == int(0.8 * 2**30 / per_row)
    assert rows_that_fit(members[:1], 20_010, 512, 64) > rows[2]

"""What `batch_size=auto` chooses."""

import torch

from lm_eval_takeover import memory
from lm_eval_takeover.generation import Request
from lm_eval_takeover.memory import cache_bytes, free_bytes, rows_that_fit
from lm_eval_takeover.reader import Reader, forward_pass


def test_the_bytes_of_a_token_are_those_of_the_cache(demo_pair, rough_pair):
    for pair in (demo_pair, rough_pair):
        for member in pair.members:
            with torch.inference_mode():
                reader = Reader(forward_pass(member), 2, 8)
                reader.read([0, 1], torch.ones(2, 3, dtype=torch.long))
            buffers = [buffer for layer in reader.cache.layers for buffer in layer.buffers]
            per_token = sum(buffer[0, 0].numel() * buffer.itemsize for buffer in buffers)
            assert cache_bytes(member) == per_token


def test_longer_samples_are_fewer(demo_pair, monkeypatch):
    members = demo_pair.members
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2**30)
    rows = [rows_that_fit(members, [Request((1,) * 10, 0, n)], 512, 64) for n in (100, 5_000, 20_000, 10**7)]
    assert rows[0] == 64
    assert rows == sorted(rows, reverse=True)
    assert 1 < rows[2] < rows[1] < 64
    assert rows[3] == 1  # one sample is always tried
    per_row = 1.5 * 20_010 * sum(map(cache_bytes, members)) + 2 * 8 * 512 * 4
    assert rows[2] == int(0.8 * 2**30 / per_row)
    assert rows_that_fit(members[:1], [Request((1,) * 10, 0, 20_000)], 512, 64) > rows[2]


def test_free_memory_is_that_of_the_device():
    assert free_bytes(torch.device("cpu")) > 2**20

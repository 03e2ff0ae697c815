"""The words of a device are those of numpy's Philox."""

import helpers.interpreter  # noqa: F401 (makes the interpreter fast)
import numpy as np
import torch

from lm_eval_takeover.kernels.draws import compute_words
from lm_eval_takeover.method.sampling import request_digest, stream_key, words


def test_they_are_those_of_numpy():
    keys, positions, expected = [], [], []
    for sample in range(3):
        for t in (0, 1, 2, 3, 4, 7, 1000, 40_001):
            keys.append(stream_key(5, request_digest((1, 2)), sample).view(np.int64))
            positions.append(t)
            expected.append(words(5, request_digest((1, 2)), sample, t + 1)[t])
    found = compute_words(torch.tensor(np.array(keys)), torch.tensor(positions))
    assert found.numpy().view(np.uint64).tolist() == expected

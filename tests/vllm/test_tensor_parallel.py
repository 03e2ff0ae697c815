"""The weights of both models over two ranks: the gate runs on each of them, and the texts stay the same."""

import numpy as np
import pytest
from helpers.pairs import POLICIES, SAMPLED

from lm_eval_takeover.method.request import GREEDY, Request

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own


def test_two_ranks_write_the_texts_of_the_transformers_engines(write_apart, tight, open_hf, prompts):
    asked = [Request(prompt, 0, 16, sampling, (), "a") for prompt in prompts for sampling in (GREEDY, SAMPLED)]
    (written,) = write_apart([(tight | {"tensor_parallel_size": 2}, asked)])
    backend = open_hf()
    backend.policy = POLICIES["disagreement"]
    for number, want in backend.generate(asked, seed=3, rows=8):
        tokens, taken, scores, _ = written["texts"][number]
        assert (tokens, taken) == (want.tokens, want.taken_over), number
        np.testing.assert_allclose(scores, want.scores, atol=1e-4)

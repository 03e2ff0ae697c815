"""Numbers that a CPU is slow with are 0 where scores and draws are computed, and nowhere else."""

import numpy as np
import torch

from lm_eval_takeover.method.registry import Score, Source
from lm_eval_takeover.method.sampling import drawing, flush_denormals

SMALL = torch.tensor(1e-40)


def test_denormals_are_zero_within_and_numbers_without():
    for context in (flush_denormals, drawing):
        assert float(SMALL * 1.0) > 0
        with context():
            with flush_denormals():
                pass
            assert float(SMALL * 1.0) == 0  # as the outer one left it
    assert float(SMALL * 1.0) > 0 and np.finfo(np.float32).smallest_subnormal > 0


def test_scores_are_computed_without_them():
    score = Score("mine", lambda host_logits: host_logits * 1.0, needs_donor=False, source=Source("here"))
    assert float(score(SMALL)) == 0

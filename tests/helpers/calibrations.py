"""A small calibration that tests of several modules share."""

import numpy as np

from lm_eval_takeover.calibration.files import Calibration, ModelId, ScoreCalibration, Target

BASE, GUIDE = ModelId("some/base", "abc"), ModelId("some/guide", "def")
SCORES = np.random.default_rng(0).gamma(0.2, 1.0, 20_000).astype(np.float32).astype(np.float64)

METHOD = {"policy": "disagreement", "score": "ce", "kappa_rule": "threshold_to_mean", "window": 10}
TARGET = Target(0.08, METHOD, "spike_ratio", 0.12, 0.0805, 100, 9000)


def calibrate_values(scores):
    """A calibration of these scores, in nats."""
    return ScoreCalibration.of(np.asarray(scores, np.float32))


def small_calibration():
    """One score, one target, named `made`."""
    return Calibration(
        BASE, GUIDE, {"size": 10, "digest": "sha256:00"}, "forward", rollouts=3, tokens=len(SCORES),
        scores={"ce": calibrate_values(SCORES)}, name="made", targets=(TARGET,),
        prompts={"dataset": "x", "seed": 0, "indices": [1], "asked": 3, "chat_template": False, "enable_thinking": None,
                 "template_digest": ["0 x", "0 x"], "problems": ["7 6c0d12e1 9a3d8a7e51c1f3b2"]},
        decoding={"temperature": 0.6, "top_p": 0.95, "top_k": 0, "max_gen_toks": 9, "until": [], "seed": 0}, cut=0,
        dtypes={"base": "torch.float32", "guide": "torch.float32"},
    )  # fmt: skip

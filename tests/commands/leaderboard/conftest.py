"""Results of five runs on the same problems, and the board of any results as JSON."""

import json

import numpy as np
import pytest
from helpers.results import SIZES, takeover, write_results

from lm_eval_takeover.cli import main

SHIFTS = {"base": -0.4, "random": -0.35, "guided": -0.05, "thinking": -0.1, "guide": 0.2}


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """The thinking one is stock `hf` with another temperature."""
    folder, generator = tmp_path_factory.mktemp("results"), np.random.default_rng(0)
    chances = {task: generator.beta(0.6, 0.6, count) for task, count in SIZES.items()}
    for name, shift in SHIFTS.items():
        counts = {t: generator.binomial(8, np.clip(p + shift, 0, 1)).tolist() for t, p in chances.items()}
        if name == "thinking":
            args = {"pretrained": "acme/Small", "enable_thinking": True}
            written = {"model": "hf", "model_args": args, "decoding": {"temperature": 0.7}}
            write_results(folder / name, counts, **written, config={"model_num_parameters": 600_000_000})
        else:
            policy = "disagreement" if name == "guided" else name
            write_results(folder / name, counts, run=takeover(policy, parameters={"base": 600_000_000}))
    return folder


@pytest.fixture
def printed(capsys):
    """What `leaderboard` prints with these words."""

    def read(*words):
        capsys.readouterr()
        assert main(["leaderboard", *map(str, words)]) == 0
        return capsys.readouterr().out

    return read


@pytest.fixture
def board(printed):
    """`(rows by name, warnings)`."""

    def read(*words):
        content = json.loads(printed(*words, "--format", "json"))
        return {row["model"]: row for row in content["rows"]}, content["warnings"]

    return read

"""One bar while two models are loaded."""

from transformers.utils import logging

from lm_eval_takeover.pair.loading import load_weights
from lm_eval_takeover.pair.loading_bar import one_loading_bar
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair


def test_two_models_load_under_one_bar(random_pair, capsys):
    pair = Pair(*(Member(role, str(folder)) for role, folder in random_pair.items()))
    load_weights(pair, ("base", "guide"))
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert {line.partition(":")[0] for line in said.strip().split("\r")} == {"Loading weights of 2 models"}
    assert "100%" in said.rpartition("\r")[2]


def test_a_model_alone_keeps_transformers_own_bar(random_pair, capsys):
    pair = Pair(Member("base", str(random_pair["base"])), None)
    load_weights(pair, ("base",))
    assert "Loading weights:" in capsys.readouterr().err


def test_other_bars_stay_and_the_hook_is_taken_back(capsys):
    with one_loading_bar(2):
        assert list(logging.tqdm(range(3), desc="Downloading")) == [0, 1, 2]
    assert "Downloading: 100%" in capsys.readouterr().err
    list(logging.tqdm(range(3), desc="Loading weights"))
    assert "Loading weights: 100%" in capsys.readouterr().err

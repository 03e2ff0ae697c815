"""`serve` before it becomes vLLM's server: addresses and words. The server itself is tested in tests/vllm."""

import socket

import pytest

from lm_eval_takeover import cli
from lm_eval_takeover.commands.serve.command import check_address, list_words
from lm_eval_takeover.errors import ArgumentError


def test_an_address_is_tried_before_models_are_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"--port {port} cannot be used: Address already in use; give"):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", port)
    check_address("localhost", port)
    check_address("::1", port)
    with pytest.raises(ArgumentError, match="--port 99999 is not a port; expected 1 to 65535"):
        check_address("127.0.0.1", 99999)


def test_engine_arguments_become_words():
    given = {"model": "m", "enforce_eager": True, "enable_x": False, "left": None, "sizes": [1, 2], "hf": {"a": 1}}
    assert " ".join(list_words(given)) == '--model m --enforce-eager --no-enable-x --sizes 1 2 --hf {"a": 1}'


def test_an_option_of_vllm_in_the_wrong_place_is_told_the_right_one(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--data-parallel-size", "2"])
    assert "options of `vllm serve` go after `--`" in capsys.readouterr().err

"""`serve` before it becomes vLLM's server: addresses and words."""

import json
import socket
import sys
from importlib.util import find_spec

import pytest

from lm_eval_takeover import cli
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.serve.command import CPU_HEADS, check_address, check_rest
from lm_eval_takeover.vllm.launch import list_words


def test_an_address_is_tried_before_models_are_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"--port {port} cannot be used: Address already in use; give"):
            check_address("127.0.0.1", port)
    for host in ("127.0.0.1", "localhost", "::1"):
        check_address(host, port)
    with pytest.raises(ArgumentError, match="--port 99999 is not a port; expected 1 to 65535"):
        check_address("127.0.0.1", 99999)


def test_engine_arguments_become_words():
    given = {"model": "m", "enforce_eager": True, "enable_x": False, "left": None, "sizes": [1, 2], "hf": {"a": 1}}
    words = list_words(given)
    assert " ".join(words) == '--model m --enforce-eager --no-enable-x --sizes 1 2 --hf {"a": 1}'
    check_rest(["--gpu-memory-utilization", "0.8", "--api-key=--model"], words)
    with pytest.raises(ArgumentError, match="--enforce_eager after `--` is set by `serve` itself; give it before"):
        check_rest(["--enforce_eager=1"], words)


def test_an_option_of_vllm_in_the_wrong_place_is_told_the_right_one(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--data-parallel-size", "2"])
    assert "options of `vllm serve` go after `--`" in capsys.readouterr().err


def test_a_bos_that_the_server_would_not_add_is_refused():
    with pytest.raises(ArgumentError, match="guide_add_bos_token=True: the server encodes prompts by its tokenizer"):
        cli.main(["serve", "--port", "18181", "--model_args", "guide_add_bos_token=True"])


@pytest.mark.parametrize("config", [{"head_dim": 24}, {"hidden_size": 96, "num_attention_heads": 4}])
def test_heads_that_vllm_has_not_on_a_cpu_are_refused_before_it_is_imported(tmp_path, monkeypatch, config):
    monkeypatch.setattr("lm_eval_takeover.serve.command.version", lambda name: "0.32.0")
    monkeypatch.setitem(sys.modules, "lm_eval_takeover.pair.loading", None)  # which imports torch
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    with pytest.raises(ArgumentError, match=r"guide='.*' has heads of 24, and vLLM computes with 32, .*; run it on a GPU, or"):
        cli.main(["serve", "--port", "18181", "--model_args", f"guide={tmp_path}"])
    if find_spec("vllm.v1"):
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        assert list(CPU_HEADS) == CPUAttentionBackend.get_supported_head_sizes()

"""Fixtures: small real pairs (the bundled one, and random weights with the same tokenizer) and the hub stand-in."""

import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lm_eval_takeover.demo import DEMO

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def save_random_model(folder, *, vocab_size, seed, hidden_size=32, layers=2, kind="qwen3", tokenizer=None, **options):
    """A checkpoint with random weights, wide enough apart that its distributions are neither flat nor certain."""
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(DEMO["base"])
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    torch.manual_seed(seed)
    settings = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 64,
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
        "initializer_range": 0.25,
        "bos_token_id": None,
        "eos_token_id": ends,
        "pad_token_id": ends[1],
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(settings | options)), dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def random_pair(tmp_path_factory):
    """Folders of a random pair of two architectures with different padded vocabularies."""
    folder = tmp_path_factory.mktemp("random-pair")
    return {
        "base": save_random_model(folder / "base", vocab_size=512, seed=1, kind="llama"),
        "guide": save_random_model(folder / "guide", vocab_size=544, seed=2, hidden_size=48, layers=3),
    }


@pytest.fixture(scope="session")
def hub(random_pair):
    """A stand-in for the hub with the real data sets, and the random pair as `acme/base` and `acme/guide`."""
    if not (SHARED / "hub" / "serve_hub.py").exists():
        pytest.skip("needs the stand-in for the hub in ../shared/hub, which is not here")
    import threading

    sys.path.insert(0, str(SHARED / "hub"))
    from serve_hub import Server

    models = random_pair["base"].parent.parent / "models"
    shutil.copytree(random_pair["base"].parent, models / "acme", dirs_exist_ok=True)
    server = Server(models=[models])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def lm_eval_command():
    """The stock command of this environment."""
    command = shutil.which("lm_eval", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if command is None:
        pytest.fail("the lm_eval command is not installed beside this Python")
    return command

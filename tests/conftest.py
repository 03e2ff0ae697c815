"""Fixtures that tests of several folders share: prompts, small real pairs and the hub stand-in.

The pairs are the bundled one, and random weights with the same tokenizer.
"""

import gc
import json
import os
import shutil
import sys
import threading
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path += [str(Path(__file__).parent.parent / name) for name in ("benchmarks", "scripts", "examples/real-model")]

import psutil
import pytest
import torch
from helpers.browser import CHROMIUM, open_browser
from helpers.demo_runs import run_demo
from helpers.pairs import SHARED, save_random_model, save_small_pair
from helpers.process_state import given_back
from helpers.processes import ForkServer, environment
from helpers.read_once import lighten_harness, made_once
from hypothesis import settings

from lm_eval_takeover.cli import build_parser, main
from lm_eval_takeover.demo import DEMO, calibration_prompts
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

HUB = SHARED / "hub" / "serve_hub.py"
settings.register_profile("any machine", deadline=None)  # time is no property of a rule
settings.load_profile("any machine")
torch.set_num_threads(1)


def pytest_configure(config):
    named = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]["entry-points"]
    if any(names.keys() - {point.name for point in entry_points(group=group)} for group, names in named.items()):
        pytest.exit("this checkout is not installed as pyproject.toml says; run `.venv/bin/pip install --no-deps -e .`", 2)
    config.option.randomly_reset_seed = False  # its seed is for the order; random states: see `given_back`


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder that all workers of these tests have in common, for what one of them makes for all: see `made_once`."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def _process_is_light():
    lighten_harness()
    gc.freeze()  # what is imported stays: `compare` collects after each row
    gc.set_threshold(20_000)  # what is new is collected less often


@pytest.fixture(autouse=True)
def _process_is_given_back(tmp_path_factory):
    with given_back(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(scope="session")
def parse():
    parser = build_parser()
    return lambda *words: parser.parse_args([*words])  # the words of a call


@pytest.fixture
def printed(capsys):
    """Calls a command, which ends with this status, and returns what it printed."""

    def call(*words, status=0):
        capsys.readouterr()
        assert main([*map(str, words)]) == status
        return capsys.readouterr().out

    return call


@pytest.fixture
def answered(capsys):
    """Calls a command for JSON, which ends with one of these statuses: `(status, document)`."""

    def call(*words, statuses=(0,)):
        capsys.readouterr()
        status = main([*map(str, words), "--format", "json"])
        assert status in statuses
        return status, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def machine(monkeypatch):
    """Makes this another machine: bytes of its memory (`total`, `available`), and whether its CPU computes in bfloat16."""

    def describe(bfloat16=None, **memory):
        if memory:
            found = psutil.virtual_memory()._replace(**memory)
            monkeypatch.setattr(psutil, "virtual_memory", lambda: found)
        if bfloat16 is not None:
            found = {"architecture": "x86_64", "amx_bf16": bfloat16}
            monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)

    return describe


@pytest.fixture(scope="session")
def random_pair(tmp_path_factory):
    """Folders of a random pair of two architectures with different padded vocabularies."""
    folder = tmp_path_factory.mktemp("random-pair")
    return {
        "base": save_random_model(folder / "base", vocab_size=512, seed=1, kind="llama"),
        "guide": save_random_model(folder / "guide", vocab_size=544, seed=2, hidden_size=48, layers=3),
    }


@pytest.fixture(scope="session")
def demo_pair():
    """The bundled pair. Tests that change weights or settings of a model build their own."""
    return Pair(Member("base", str(DEMO["base"])), Member("guide", str(DEMO["guide"])))


@pytest.fixture(scope="session")
def rough_pair(random_pair):
    """The random pair, loaded. Tests that change weights or settings of a model build their own."""
    return Pair(Member("base", str(random_pair["base"])), Member("guide", str(random_pair["guide"])))


@pytest.fixture(scope="session")
def small_pair(tmp_path_factory):
    """For what holds of any pair: its passes are fast, and base and guide agree at most tokens. Not for changes to the models."""
    folders = save_small_pair(tmp_path_factory.mktemp("small-pair"))
    return Pair(Member("base", str(folders["base"])), Member("guide", str(folders["guide"])))


@pytest.fixture
def own_pair(small_pair):
    """The same for one test, which may change its models."""
    return Pair(*(Member(member.role, member.path) for member in small_pair.members))


@pytest.fixture(scope="session")
def prompts(demo_pair):
    """Four ragged prompts as token ids: puzzles, one of them cut short and one with a preamble."""
    texts = calibration_prompts()[:4]
    texts[1] = texts[1][-60:]
    texts[2] = "When a number ends in 0-3, the ant takes 5. " * 2 + texts[2]
    return [tuple(demo_pair.encode(text)) for text in texts]


@pytest.fixture(scope="session")
def demo_runs(shared_folder):
    """Run_dirs of four demo problems by 8 samples: `base` and `guided` (both scored), `guide`. Tests that write copy them."""
    policies = {"base": {"policy": "base"}, "guided": {"target_rate": 0.05}, "guide": {"policy": "guide"}}

    def make(folder):
        for name, arguments in policies.items():
            run_demo(folder / name, 4, arguments)
        assert main(["score", str(folder / "base"), str(folder / "guided")]) == 0

    folder = made_once(shared_folder / "demo-runs", make)
    return {name: folder / name for name in policies}


@pytest.fixture(scope="session")
def hub(random_pair):
    """A stand-in for the hub: the real data sets, the random pair as `acme/base`, `acme/guide`."""
    if not HUB.exists():
        pytest.skip("needs the stand-in for the hub in ../shared/hub, which is not here")
    sys.path.insert(0, str(HUB.parent))
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


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A page of a real browser."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium (Debian's package `chromium`), which is not here")
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="session")
def forked(request, tmp_path_factory):
    """Runs commands whose start is not what is tested. They read the stand-in for the hub, where there is one."""
    folder, env = tmp_path_factory.mktemp("commands"), environment()
    if HUB.exists():
        hub = request.getfixturevalue("hub")
        from serve_hub import environment as at_hub

        env = at_hub(hub.url, str(folder / "hf-home")) | {"OMP_NUM_THREADS": "1"}
    server = ForkServer(folder, env)
    yield server
    server.close()


@pytest.fixture(scope="session")
def forked_at_hub(hub, forked):
    """The same for commands that need the stand-in."""
    return forked

"""What the tests with vLLM share: the environment of its processes, and engines, one of each configuration."""

import gc
import os
import sys
from importlib.util import find_spec
from unittest.mock import patch

import pytest

from helpers.pairs import ROOT
from helpers.processes import HELPERS
from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding.engine import TransformersBackend
from lm_eval_takeover.pair.pair import load_pair
from lm_eval_takeover.pair.policy_choice import load_policy

_found = find_spec("vllm")  # a folder of tests, where vLLM is not
HAS_VLLM = bool(_found is not None and _found.origin)
BY_HAND = {"policy": "disagreement", "tau": 1.5, "kappa": 2.0, "dtype": "float32"}
os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
if HAS_VLLM:
    from helpers.vllm_processes import sitecustomize  # noqa: F401 (for this process, as for those that it starts)

    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "tests", HELPERS / "vllm_processes")))


def list_left_out(folder, needs_none):
    """The test files of a folder that do not run here. Those that need no vLLM run once: where it is not."""
    return sorted(needs_none if HAS_VLLM else {file.name for file in folder.glob("test_*.py")} - needs_none)


@pytest.fixture(autouse=True)
def environment_is_read_anew():
    """An engine makes vLLM keep the environment as it was then; this test may change it."""
    if "vllm.envs" in sys.modules:
        sys.modules["vllm.envs"].disable_envs_cache()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_collected_by_hand():
    """vLLM collects several times as an engine starts and as it ends, and looks through all that is imported."""
    with patch.object(gc, "collect", (lambda *_: 0) if HAS_VLLM else gc.collect):
        yield


@pytest.fixture(scope="session")
def demo_folders(tmp_path_factory):
    """The bundled pair with wider heads: vLLM has its own in no size on a CPU."""
    from padded_heads import write_demo

    return write_demo(tmp_path_factory.mktemp("demo"))


def open_with(engine, usual, opened):
    """Opens backends with model arguments, the same one for the same arguments."""

    def open_one(**arguments):
        key = repr(sorted(arguments.items()))
        if key not in opened:
            parsed = ModelArguments.parse(usual | arguments)
            pair = load_pair(parsed)
            opened[key] = engine(parsed, pair, load_policy(parsed, pair)[0])
        return opened[key]

    return open_one


@pytest.fixture(scope="session")
def open_hf(demo_folders):
    """The transformers engines for the same arguments."""
    return open_with(TransformersBackend, demo_folders | BY_HAND, {})

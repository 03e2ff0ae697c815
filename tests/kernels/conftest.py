"""The kernels on a GPU, where there is one; else Triton interprets them, in a process of their own with `TRITON_INTERPRET=1`.

`make test-vllm` runs them there; elsewhere they are left out. On a GPU the same tests run: their tensors go to the device and the
results come back.
"""

import os
import pkgutil
from importlib.util import find_spec

import pytest
import torch
from torch.utils._pytree import tree_map_only

has_triton = find_spec("triton") is not None
on_gpu = has_triton and torch.cuda.is_available()
interpreted = has_triton and os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if interpreted or on_gpu else ["test_*.py"]


def on_device(name, function):
    schema = getattr(torch.ops.lm_eval_takeover, name).default._schema

    def run(*arguments, **options):
        given = tree_map_only(torch.Tensor, lambda tensor: tensor.cuda(), arguments)
        made = tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), function(*given, **options))
        for mine, theirs, argument in zip(arguments, given, schema.arguments, strict=False):
            if argument.is_write:
                mine.copy_(theirs)
        return made

    return run


@pytest.fixture(scope="session", autouse=True)
def _kernels_run_on_the_gpu():
    if interpreted or not on_gpu:
        yield
        return
    from lm_eval_takeover.kernels.operations import MODULES

    with pytest.MonkeyPatch.context() as patch:
        for name, module in MODULES.items():
            path = f"lm_eval_takeover.kernels.{module}.{name}"
            patch.setattr(path, on_device(name, pkgutil.resolve_name(path)))
        yield

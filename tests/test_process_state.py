"""Tests do not depend on each other: what one does to its process is given back after it."""

import contextvars
import logging
import os
import random
import signal
import subprocess
import sys
from importlib import import_module

import numpy as np
import torch
from helpers.pairs import ROOT
from helpers.process_state import given_back

from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.method.registry import load_plugins, scores
from lm_eval_takeover.stopping import last_words, on_stop

PLUGIN = """
from dataclasses import dataclass
from lm_eval_takeover import Policy, register_policy, register_score

register_score("left behind", needs_donor=False)(lambda host_logits: host_logits[..., 0])

@register_policy("left behind")
@dataclass(frozen=True, kw_only=True)
class Left(Policy):
    pass
"""
OWN = contextvars.ContextVar("one without a default")


def read_state(folder):
    loggers = [logging.getLogger(name) for name in (None, "lm_eval_takeover", "transformers")]
    return {
        "registered": (scores.names(), policies.names()),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "imports": [list(sys.meta_path), list(sys.path), sys.argv],
        "modules": [name for name in sys.modules if "stranger" in name or name == "own_module"],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "hook": sys.excepthook,
        "logging": [(one.level, list(one.handlers), one.propagate, one.parent) for one in loggers],
        "threads": torch.get_num_threads(),
        "torch": (torch.get_default_dtype(), torch.is_grad_enabled()),
        "last words": last_words(),
    }  # fmt: skip


def spoil(folder):
    """What careless tests do."""
    (folder / "stranger.py").write_text(PLUGIN)
    load_plugins(str(folder / "stranger.py"))
    (folder / "own_module.py").write_text("")
    sys.path.insert(0, str(folder))
    import_module("own_module")
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    sys.meta_path.clear()
    sys.argv = ["lm_eval"]
    os.environ["HF_HUB_OFFLINE"], os.environ["OWN"] = "0", "1"
    os.chdir(folder)
    sys.excepthook = print
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger("lm_eval_takeover").setLevel("ERROR")
    logging.getLogger("lm_eval_takeover").parent = logging.getLogger("lm_eval")
    logging.getLogger("transformers").propagate = False
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    on_stop(lambda: "kept")


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_what_a_test_does_to_its_process_is_given_back(tmp_path):
    before = read_state(tmp_path)
    numbers = []
    for _ in range(2):
        with given_back(tmp_path):
            numbers.append(draw())
            spoil(tmp_path)
            changed = read_state(tmp_path)
            assert [name for name in before if changed[name] == before[name]] == []
        assert read_state(tmp_path) == before
    assert numbers[0] == numbers[1]


def test_make_test_runs_every_part_and_names_those_that_failed(tmp_path):
    part = tmp_path / "make"
    part.write_text('#!/bin/sh\necho "$1 runs"; [ "$1" != suite ]\n')
    part.chmod(0o755)
    done = subprocess.run(
        ["make", "-s", "--no-print-directory", "-o", "install", "test", f"MAKE={part}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["check runs", "suite runs", "test-vllm runs", "make test: FAILED: suite"]
    assert done.returncode == 2

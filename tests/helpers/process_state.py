"""What tests of one process share, given back after each of them, so that no test sees what another one did."""

import contextlib
import contextvars
import logging
import os
import random
import signal
import sys
import threading
from copy import copy
from pathlib import Path

import numpy as np
import torch

from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.method.registry import scores

# How each is read and written.
_VALUES = (
    (os.getcwd, os.chdir),
    *((lambda of=of: of.excepthook, lambda hook, of=of: setattr(of, "excepthook", hook)) for of in (sys, threading)),
    (lambda: logging.root.manager.disable, logging.disable),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    *(
        (lambda n=n: signal.getsignal(n), lambda handler, n=n: signal.signal(n, handler))
        for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD)
    ),
)
_LOGGERS = (logging.root, *map(logging.getLogger, ("lm_eval_takeover", "lm_eval", "transformers")))
_LOGGER = ("level", "handlers", "filters", "propagate", "disabled", "parent")


@contextlib.contextmanager
def given_back(temporary):
    """After the block every process-wide state is what it was before; modules of files under `temporary` are forgotten.

    Random states start from one fixed seed.
    """
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    scores.names(), policies.names()  # ours are there
    registries = [part for registry in (scores, policies) for part in (registry.entries, registry.skipped)]
    held = (os.environ, *registries)
    copies = [one.copy() for one in held]
    lists = {name: getattr(sys, name).copy() for name in ("argv", "path", "path_hooks", "meta_path")}
    values = [read() for read, _ in _VALUES]
    loggers = [(one, name, copy(getattr(one, name))) for one in _LOGGERS for name in _LOGGER]
    modules, context = set(sys.modules), contextvars.copy_context()
    yield
    for one, kept in zip(held, copies, strict=True):
        if one != kept:
            one.clear()
            one.update(kept)
    for name, kept in lists.items():
        if getattr(sys, name) != kept:
            setattr(sys, name, kept)
    for (read, write), value in zip(_VALUES, values, strict=True):
        if read() != value:
            write(value)
    for logger, name, value in loggers:
        setattr(logger, name, value)
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(temporary):
            del sys.modules[name]
    for variable in contextvars.copy_context():
        with contextlib.suppress(LookupError):  # it has no default
            variable.set(context[variable] if variable in context else contextvars.Context().run(variable.get))

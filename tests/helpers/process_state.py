"""What tests of one process share, given back after each of them, so that no test sees what another one did."""

import contextlib
import contextvars
import logging
import os
import random
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import torch

from lm_eval_takeover.calibration.files import note_tasks
from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.runs import progress
from lm_eval_takeover.tasks import gpqa

# How each is read and written.
_VALUES = (
    (os.getcwd, os.chdir),
    (lambda: sys.excepthook, lambda hook: setattr(sys, "excepthook", hook)),
    (lambda: threading.excepthook, lambda hook: setattr(threading, "excepthook", hook)),
    (lambda: logging.root.manager.disable, logging.disable),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
)
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_LOGGER = ("level", "handlers", "filters", "propagate", "disabled")
_OURS = logging.getLogger("lm_eval_takeover")


@contextlib.contextmanager
def given_back(temporary):
    """After the block every process-wide state is what it was before; modules of files under `temporary` are forgotten.

    Random states start from one fixed seed.
    """
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    note_tasks([], None)  # a fixture of a whole session may have run a command before
    scores.names(), policies.names()  # ours are there
    registries = [part for registry in (scores, policies) for part in (registry.entries, registry.skipped)]
    held = (os.environ, gpqa.WITHHOLDING, *registries, progress.BAR_OPTIONS)
    copies = [one.copy() for one in held]
    lists = {name: getattr(sys, name).copy() for name in ("argv", "path", "path_hooks", "meta_path")}
    values = [read() for read, _ in _VALUES]
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    loggers, parent = _read_loggers(), _OURS.parent
    modules, context = set(sys.modules), contextvars.copy_context()
    yield
    for one, copy in zip(held, copies, strict=True):
        if one != copy:
            one.clear()
            one.update(copy)
    for name, copy in lists.items():
        if getattr(sys, name) != copy:
            setattr(sys, name, copy)
    for (read, write), value in zip(_VALUES, values, strict=True):
        if read() != value:
            write(value)
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    for logger, state in _read_loggers().items():
        for name, now, value in zip(_LOGGER, state, loggers.get(logger, state), strict=True):
            if now != value:
                setattr(logger, name, list(value) if isinstance(value, tuple) else value)
    _OURS.parent = parent
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(temporary):
            del sys.modules[name]
    for variable in contextvars.copy_context():
        with contextlib.suppress(LookupError):  # it has no default
            variable.set(context[variable] if variable in context else contextvars.Context().run(variable.get))


def _read_loggers():
    """By logger its attributes, lists as tuples."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    return {
        one: (one.level, tuple(one.handlers), tuple(one.filters), one.propagate, one.disabled)
        for one in loggers
        if isinstance(one, logging.Logger)
    }

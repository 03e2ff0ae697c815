"""Makes the stock `lm_eval` command find our model type and tasks; standard library only.

Run at every start of Python by a `.pth` file (3.15+: a `.start` file), so it must cost next to nothing: it puts one finder
on `sys.meta_path`, which does nothing until lm-eval imports one of a few modules (`AFTER`). Only then, once lm-eval's own
models are in its registry (registering earlier would hide them: `get_model` fills the registry only while it is empty), the
model type is added by name and our task folder joins the default ones; and `lm_eval_takeover.lm_eval_hooks` looks at the options
of the command and at each evaluation, for a run of this model type.

`LM_EVAL_TAKEOVER_AUTOLOAD=0` switches it off. lm-eval releases that read the entry-point group `lm_eval.models` find the
model type by themselves; then it is left as it is.
"""

import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader

TYPE_CHECKING = False  # typing itself would cost more than all of this
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

MODEL = "guided-takeover"
TARGET = "lm_eval_takeover.model:GuidedTakeover"


def _register_model(module: "ModuleType") -> None:
    from lm_eval.api.registry import model_registry

    if MODEL not in model_registry:
        model_registry.register(MODEL, target=TARGET)


def _add_task_folder(module: "ModuleType") -> None:
    from functools import wraps

    plain = module.TaskManager.__init__

    @wraps(plain)
    def init(
        self: "Any",
        verbosity: "Any" = None,
        include_path: "Any" = None,
        include_defaults: bool = True,
        *args: "Any",
        **kwargs: "Any",
    ) -> None:
        paths = include_path
        if include_defaults:
            from lm_eval_takeover.storage.files import TASK_CONFIGS

            given = include_path if isinstance(include_path, (list, tuple)) else [include_path]
            # Ours first: a task of the same name in the user's folder wins.
            paths = [str(TASK_CONFIGS), *(path for path in given if path)]
        plain(self, verbosity, paths, include_defaults, *args, **kwargs)
        self.include_path = include_path

    module.TaskManager.__init__ = init


def _catch_signals() -> None:
    """Under the command with our model type, Ctrl-C is one line from the first import of lm-eval on."""
    if MODEL in sys.argv or f"--model={MODEL}" in sys.argv:
        from lm_eval_takeover.stopping import install_error_hook

        install_error_hook()


def _check_options(module: "ModuleType") -> None:
    """Errors in the command's options are told before lm-eval imports what takes long."""
    from functools import wraps

    plain = module.Run._execute

    @wraps(plain)
    def execute(options: "Any") -> None:
        if getattr(options, "model", None) == MODEL or _names_model(getattr(options, "config", None)):
            from lm_eval_takeover.lm_eval_hooks import run_command

            run_command(plain, options)
        else:
            plain(options)

    module.Run._execute = staticmethod(execute)


def _names_model(config: "Any") -> bool:
    """Whether a `--config` file names our model type anywhere; lm-eval says what is wrong with one that cannot be read."""
    try:
        with open(config) as file:
            return MODEL in file.read()
    except (OSError, TypeError, ValueError):
        return False


def _observe_evaluations(module: "Any") -> None:
    from lm_eval_takeover.lm_eval_hooks import observe_evaluation, without_stderr

    module.simple_evaluate = observe_evaluation(module.simple_evaluate)
    module.get_git_commit_hash = without_stderr(module.get_git_commit_hash)


def _shorten_tables(module: "Any") -> None:
    from functools import wraps

    plain = module.make_table

    @wraps(plain)
    def make_table(results: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        if (results.get("config") or {}).get("takeover"):
            from lm_eval_takeover.lm_eval_hooks import leave_out_noughts

            results = leave_out_noughts(results)
        return plain(results, *args, **kwargs)

    module.make_table = make_table


AFTER = {
    "lm_eval._cli.run": _check_options,
    "lm_eval.evaluator": _observe_evaluations,
    "lm_eval.models": _register_model,
    "lm_eval.tasks.manager": _add_task_folder,
    "lm_eval.utils": _shorten_tables,
}


class _Loader(SourceFileLoader):
    """Loads one of these modules as usual and lets `AFTER` run behind its own code."""

    def exec_module(self, module: "ModuleType") -> None:
        super().exec_module(module)
        try:
            AFTER[module.__name__](module)
        except Exception as error:  # lm-eval itself must go on working, whatever its next release renames
            problem = f"lm-eval-takeover does not fit this lm-eval: {error!r}"
            print(f"{problem}; LM_EVAL_TAKEOVER_AUTOLOAD=0 silences this", file=sys.stderr)


class _Finder:
    """Finds these modules for `_Loader`."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        if name == "lm_eval":
            _catch_signals()
        if name not in AFTER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Put the finder in place, once per process."""
    if os.environ.get("LM_EVAL_TAKEOVER_AUTOLOAD") != "0" and _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)

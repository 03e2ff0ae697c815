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
            from lm_eval_takeover.storage.paths import TASK_CONFIGS

            given = include_path if isinstance(include_path, (list, tuple)) else [include_path]
            # Ours first: a task of the same name in the user's folder wins.
            paths = [str(TASK_CONFIGS), *(path for path in given if path)]
        plain(self, verbosity, paths, include_defaults, *args, **kwargs)
        self.include_path = include_path

    module.TaskManager.__init__ = init


def _catch_signals(module: "ModuleType") -> None:
    """Under the command with our model type, Ctrl-C goes through our error hook once lm-eval is being imported."""
    if MODEL in sys.argv or f"--model={MODEL}" in sys.argv:
        from lm_eval_takeover.errors import install_error_hook

        install_error_hook()


def _check_options(module: "ModuleType") -> None:
    """Errors in the command's options are told before lm-eval imports what takes long."""
    from functools import wraps

    plain = module.Run._execute

    @wraps(plain)
    def execute(options: "Any") -> None:
        if getattr(options, "model", None) == MODEL or _names_model(getattr(options, "config", None)):
            from lm_eval_takeover.lm_eval_hooks import check_options

            check_options(options)
        _restore_interrupts()
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


AFTER = {
    "lm_eval": _catch_signals,
    "lm_eval._cli.run": _check_options,
    "lm_eval.evaluator": _observe_evaluations,
    "lm_eval.models": _register_model,
    "lm_eval.tasks.manager": _add_task_folder,
}


class _Finder:
    """Finds these modules as usual and lets `AFTER` run behind their own code."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        if name not in AFTER:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            execute(module)
            try:
                AFTER[name](module)
            except Exception as error:  # lm-eval itself must go on working, whatever its next release renames
                print(
                    f"lm-eval-takeover does not fit this lm-eval: {error!r}; LM_EVAL_TAKEOVER_AUTOLOAD=0 silences this",
                    file=sys.stderr,
                )

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _stop_at_once(*_: "Any") -> None:
    os.write(2, b"\nstopped before the run began\n")
    os._exit(130)


def _restore_interrupts() -> None:
    """From the command's own work on, Ctrl-C is an exception again, which says what was kept."""
    import signal

    if signal.getsignal(signal.SIGINT) is _stop_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_lm_eval(words: "list[str]") -> bool:
    """Whether this is `python … SCRIPT` or `python … -m MODULE` of lm-eval: the interpreter's own options come first."""
    rest = iter(words[1:])
    for word in rest:
        if word[:1] != "-" or word == "-":
            return os.path.basename(word) in ("lm_eval", "lm-eval")
        if word == "--check-hash-based-pycs":
            next(rest, None)
        for place, letter in enumerate(word[1:] if word[:2] != "--" else "", 2):
            if letter in "cmWX":  # its value is the rest of the word, or the next one
                value = word[place:] or next(rest, "")
                if letter in "cm":
                    return letter == "m" and value in ("lm_eval", "lm_eval.__main__")
                break
    return False


def install() -> None:
    """Put the finder in place, once per process; in `lm_eval` with our model type Ctrl-C is a line from here on."""
    if os.environ.get("LM_EVAL_TAKEOVER_AUTOLOAD") == "0" or _Finder in sys.meta_path:
        return
    sys.meta_path.insert(0, _Finder)
    words = getattr(sys, "orig_argv", [])
    if (MODEL in words or f"--model={MODEL}" in words) and is_lm_eval(words):
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _stop_at_once)

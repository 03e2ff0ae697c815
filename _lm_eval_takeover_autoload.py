"""Makes the stock `lm_eval` command find our model type and tasks; standard library only.

Run at every start of Python by a `.pth` file (3.15+: a `.start` file), so it must cost next to nothing: it puts one finder
on `sys.meta_path`, which does nothing until lm-eval imports `lm_eval.models` or `lm_eval.tasks.manager`. Only then, once
lm-eval's own models are in its registry (registering earlier would hide them: `get_model` fills the registry only while
it is empty), the model type is added by name and our task folder joins the default ones.

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
            from lm_eval_takeover.storage.package_data import data_folder

            given = include_path if isinstance(include_path, (list, tuple)) else [include_path]
            # Ours first: a task of the same name in the user's folder wins.
            paths = [str(data_folder("task_configs")), *(path for path in given if path)]
        plain(self, verbosity, paths, include_defaults, *args, **kwargs)
        self.include_path = include_path

    module.TaskManager.__init__ = init


AFTER = {"lm_eval.models": _register_model, "lm_eval.tasks.manager": _add_task_folder}


class _Finder:
    """Finds the two modules as usual and lets `AFTER` run behind their own code."""

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


def install() -> None:
    """Put the finder in place, once per process."""
    if os.environ.get("LM_EVAL_TAKEOVER_AUTOLOAD") != "0" and _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)

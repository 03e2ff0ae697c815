"""Triton's interpreter for the tests of kernels: to be imported before anything imports Triton."""

import os

os.environ["TRITON_INTERPRET"] = "1"

from triton.runtime import interpreter

_patch, _patched = interpreter._patch_lang, set()


class _Kept:
    def restore(self):
        """Nothing: this process interprets all that it runs."""


def _patch_once(function):
    """The interpreter replaces some hundred functions of Triton's language at every call of a helper; once is enough."""
    languages = tuple(sorted(name for name in function.__globals__ if name in ("tl", "core")))
    if languages not in _patched:
        _patch(function)
        _patched.add(languages)
    return _Kept()


interpreter._patch_lang = _patch_once

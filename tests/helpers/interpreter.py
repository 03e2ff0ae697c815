"""Triton's interpreter on a CPU, in processes with `TRITON_INTERPRET=1`."""

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


def interpret_operations(monkeypatch):
    """Operations of the kernels on a CPU, in tiles of 64 tokens; whatever chooses between them and numpy chooses them."""
    import torch

    from lm_eval_takeover.kernels import draws, operations, readings

    given = {"rows": 16, "tile": 64}
    library = torch.library.Library("lm_eval_takeover", "IMPL")
    library.impl("draw", lambda *arguments: draws.draw(*arguments, **given), "CPU")
    library.impl("read_pair", lambda *arguments: readings.read_pair(*arguments, **given), "CPU")
    library.impl("jensen_shannon", lambda *arguments: readings.jensen_shannon(*arguments, **given), "CPU")
    library.impl("compute_words", draws.compute_words, "CPU")
    monkeypatch.setattr(operations, "uses_kernels", lambda logits: True)
    return library

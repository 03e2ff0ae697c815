"""Triton's interpreter on a CPU, in processes with `TRITON_INTERPRET=1`."""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_patch, _patched = interpreter._patch_lang, set()
_convert, _dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot


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


def _round(values, given, made, mode):
    """float32 becomes bfloat16 as on a GPU (`cvt.rn.bf16.f32`): the nearest, of two the even one. Triton's cuts digits off."""
    if (given, made) != (tl.float32, tl.bfloat16):
        return _convert(values, given, made, mode)
    bits = values.view(np.uint32)
    return np.where(np.isnan(values), 0x7FFF, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _multiply(builder, left, right, *rest):
    """bfloat16 is multiplied as float32, which is exact. Triton's multiplies the bits as integers."""
    parts = (builder.cast_impl(part, tl.float32) if part.dtype.scalar == tl.bfloat16 else part for part in (left, right))
    return _dot(builder, *parts, *rest)


interpreter._patch_lang, interpreter._convert_float = _patch_once, _round
interpreter.InterpreterBuilder.create_dot = _multiply


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

"""Numbers below 1e-38, which a CPU computes with a hundred times slower, and which peaked distributions are full of."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DENORMAL = torch.tensor(1e-40)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Within, this thread takes them for 0. Not for longer: NumPy warns of it where it looks up a type's smallest number."""
    flushed = float(_DENORMAL * 1.0) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)

"""CUDA graphs of passes."""

import logging
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class CudaGraphs:
    """CUDA graphs by key, captured when it first runs. Without a GPU, or where capturing fails, everything runs eagerly."""

    def __init__(self, device: torch.device) -> None:
        self.enabled = device.type == "cuda"
        self._captured: dict[Hashable, tuple[Any, Any]] = {}
        self._pool: Any = None
        # A stream of its own: libraries keep a workspace per stream, which must not go away with another model's graphs.
        self._stream: Any = None

    def clear(self) -> None:
        """Drop all graphs, since tensors that they read or write were replaced."""
        if self._captured:
            torch.cuda.synchronize()
        self._captured.clear()
        self._pool = None

    def run(self, key: Hashable, function: Callable[[], Result]) -> Result:
        """What `function` returns, in tensors that any next call overwrites.

        `function` reads and writes static tensors only, and may be run more than once.
        """
        if not self.enabled:
            return function()
        if key not in self._captured and not self._capture(key, function):
            return function()
        graph, result = self._captured[key]
        graph.replay()
        return result  # type: ignore[no-any-return]

    def _capture(self, key: Hashable, function: Callable[[], Any]) -> bool:
        current = torch.cuda.current_stream()
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # Once beside the stream, since libraries prepare themselves at a first call, which cannot be captured.
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                result = function()
        except torch.OutOfMemoryError:
            torch.cuda.set_stream(current)
            raise
        except RuntimeError as error:
            torch.cuda.set_stream(current)
            logger.warning("CUDA graphs cannot be used: %s; continuing without them", str(error).splitlines()[0])
            self.enabled = False
            self.clear()
            return False
        self._pool = self._pool or graph.pool()
        self._captured[key] = graph, result
        return True

"""CUDA graphs, simulated on a CPU: what is recorded once is replayed on the same storages; host code in between is frozen.

Between two replays the tensors that a graph has made hold garbage, as on a GPU, where graphs share one pool of memory.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lm_eval_takeover.forward.forward_pass import CudaGraphs

WAITS = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "masked_select", "unique", "equal")


class Recording(TorchDispatchMode):
    """Records every operation within. Raises RuntimeError where the host asks for a value, as a capture does."""

    def __init__(self):
        super().__init__()
        self.steps = []  # operation, its arguments, and the tensors that it has made

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function._schema.name.removeprefix("aten::") in WAITS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {function}")
        result = function(*args, **kwargs)
        given = {tensor.untyped_storage().data_ptr() for tensor in list_tensors([args, kwargs])}
        made = [tensor for tensor in list_tensors([result]) if tensor.untyped_storage().data_ptr() not in given]
        if made or function._schema.is_mutable:  # the rest are views
            self.steps.append((function, args, kwargs, result, made))
        return result

    def replay(self):
        with torch._C.DisableTorchFunction(), torch.inference_mode():
            for function, args, kwargs, result, made in self.steps:
                again = function(*args, **kwargs)
                for old, new in zip(list_tensors([result]) if made else (), list_tensors([again]), strict=bool(made)):
                    old.copy_(new)

    def spoil(self):
        """Leave garbage in what the graph has made."""
        with torch._C.DisableTorchFunction(), torch.inference_mode():
            for *_, made in self.steps:
                for tensor in made:
                    tensor.fill_(torch.nan if tensor.is_floating_point() else 1)


def simulate_captures(patch):
    """Every `CudaGraphs` is simulated."""
    patch.setattr(CudaGraphs, "run", run_captured)
    patch.setattr(CudaGraphs, "clear", lambda self: self._captured.clear())


def run_captured(self, key, function):
    """In the place of `CudaGraphs.run`."""
    if key not in self._captured:
        function()
        with Recording() as graph:
            result = function()
        self._captured[key] = graph, result
    for other, _ in self._captured.values():
        other.spoil()
    graph, result = self._captured[key]
    graph.replay()
    return result


def list_tensors(values):
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += list_tensors(value)
        elif isinstance(value, dict):
            tensors += list_tensors(value.values())
    return tensors

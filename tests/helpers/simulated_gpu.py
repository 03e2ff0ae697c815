"""A GPU that is simulated: tensors of the CPU that say `cuda`, and a list of where the host would wait for them.

`FakeTensorMode` has no values, and torch cannot index its `cuda` tensors where it is built without CUDA. Here the values are
there, so a whole run goes as on a GPU, without graphs, and its texts can be compared.
"""

from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from helpers.torch_kernels import draw_in_torch, read_in_torch
from lm_eval_takeover.forward import draft_length
from lm_eval_takeover.forward.cuda_graphs import CudaGraphs
from lm_eval_takeover.kernels import operations
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.scores import jensen_shannon

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
ASKS = {
    "tolist",
    "numpy",
    "item",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "cpu",
    "nonzero",
    "masked_select",
    "unique",
}


class SimulatedGpu(TorchFunctionMode):
    """While `counts`: `waits` are copies that were waited for, `faults` all other operations that need a value on the host.

    Faults are also operations that mix devices, and uploads from memory that is not pinned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.waits, self.counts = 0, False

    def place(self, *values):
        """These tensors are on the device."""
        for tensor in _tensors(values):
            tensor._place = "device"

    def draw(self, logits, words, rules, rows=None):
        """`kernels.draw`, in plain torch."""
        with torch._C.DisableTorchFunction():
            asked = logits if rows is None else logits[rows.clamp(min=0)]
            own = rules.table.expand(len(words), -1).tolist()
            rules = [Sampling(temperature, top_p, int(top_k)) for temperature, top_p, top_k in own]
            parts = [draw_in_torch(asked[[i]], words[[i]], rule) for i, rule in enumerate(rules)]
            drawn = tuple(torch.cat(values) for values in zip(*parts, strict=True))
        self.place(drawn)
        return drawn

    def read(self, *arguments):
        """`kernels.read_pair`."""
        with torch._C.DisableTorchFunction():
            found = read_in_torch(*arguments)
        self.place(found)
        return found

    def compute_words(self, keys, positions):
        """`kernels.compute_words`, by numpy."""
        with torch._C.DisableTorchFunction():
            found = torch.empty_like(positions)
            for key, place, t in zip(
                keys.expand(*positions.shape, 2).reshape(-1, 2).numpy().view(np.uint64),
                np.ndindex(positions.shape),
                positions.flatten().tolist(),
                strict=True,
            ):
                found[place] = int(np.random.Philox(key=key).random_raw(t + 1)[t].astype(np.int64))
        self.place(found)
        return found

    def diverge(self, host, donor):
        """`kernels.jensen_shannon`."""
        with torch._C.DisableTorchFunction():
            found = jensen_shannon(host, donor)
        self.place(found)
        return found

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", str(function))
        given = _tensors([args, kwargs])
        placed = [one for one in given if _place(one) == "device"]
        if name == "__get__":
            if function.__self__ is torch.Tensor.device and placed:
                return CUDA
            found = function(*args, **kwargs)
            if placed:
                self.place(found)  # `.T`, `.data`
            return found
        if name == "pin_memory":
            args[0]._place = "pinned"
            return args[0]
        pinned = kwargs.pop("pin_memory", False)
        asked = [
            one for one in (*args, kwargs.get("device")) if isinstance(one, (torch.device, str)) and "cuda" in str(one)
        ]
        args = tuple(CPU if any(one is cuda for cuda in asked) else one for one in args)
        if "device" in kwargs and asked:
            kwargs["device"] = CPU
        found = function(*args, **kwargs)
        if name == "to" and asked and not placed:
            if _place(given[0]) != "pinned" or not kwargs.get("non_blocking"):
                self._blame("to", "an upload that waits")
            found = found.clone() if found is given[0] else found
            self.place(found)
        elif name == "copy_" and placed and _place(given[0]) == "pinned":
            if not kwargs.get("non_blocking"):
                self._blame(name, "to the host")
        elif asked:
            if name in ("tensor", "as_tensor") and not placed:
                self._blame(name, "an upload that waits")
            self.place(found)
        elif placed:
            self._check(name, args, given, placed)
            if name not in ASKS:
                self.place(found)
        elif pinned:
            found._place = "pinned"
        return found

    def _check(self, name, args, given, placed):
        if name in ASKS or (name == "where" and len(args) == 1):
            self._blame(name, "asks for values")
        if name in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            masks = [one for one in _tensors(index) if one.dtype == torch.bool]
            if masks or any(isinstance(one, list) for one in index):
                self._blame(name, "by a list or a mask")
        elif len(placed) < len(given) and any(one.dim() and _place(one) != "device" for one in given):
            self._blame(name, "mixes devices")

    def _blame(self, name, what):
        if self.counts:
            self.faults.append(f"{name}: {what}")


def _place(tensor):
    return tensor.__dict__.get("_place", "host")


def _tensors(values):
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
        elif isinstance(value, dict):
            found += _tensors(value.values())
    return found


@contextmanager
def simulated_gpu(pair, monkeypatch):
    """The models of this pair, which nothing else uses, on a `SimulatedGpu`."""
    gpu = SimulatedGpu()

    class Event:
        def record(self, stream):
            pass

        arrived = False

        def query(self):
            self.arrived = True
            return True

        def synchronize(self):
            gpu.waits += gpu.counts and not self.arrived

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "get_device_name", lambda device: "simulated")
        patch.setattr(torch.cuda, "current_stream", lambda device: None)
        patch.setattr(torch.cuda, "device", lambda device: nullcontext())
        # vLLM's second model runner replaces it for the whole process where there is no GPU
        patch.setattr(torch.Tensor, "pin_memory", torch._C.TensorBase.pin_memory)
        patch.setattr(draft_length, "_memory", lambda device: 2**34)
        patch.setattr(CudaGraphs, "run", lambda self, key, function: function())
        for name, replaced in {
            "draw": gpu.draw,
            "read_pair": gpu.read,
            "jensen_shannon": gpu.diverge,
            "compute_words": gpu.compute_words,
        }.items():
            patch.setattr(operations, name, replaced)
        for member in pair.members:
            _ = member.model  # loaded on the CPU
            patch.setattr(member, "device", CUDA)
            patch.setattr(member, "prepared_pass", None)
            patch.setattr(member, "self_check", None)
            gpu.place(*member.model.parameters(), *member.model.buffers())
        with gpu:
            yield gpu

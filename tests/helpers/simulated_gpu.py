"""GPUs that are simulated: tensors of the CPU that say `cuda`, and a list of where the host would wait for them.

`FakeTensorMode` has no values, and torch cannot index its `cuda` tensors where it is built without CUDA. Here the values are
there, so a whole run goes as on a GPU, its graphs captured and replayed, and its texts can be compared. What is recorded once is
replayed on the same storages; host code in between is frozen. Between two replays the tensors that a graph has made hold garbage,
as on a GPU, where graphs share one pool of memory. Devices refuse each other's tensors, and kernels refuse tensors of another
device than the current one.
"""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention, silu
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from lm_eval_takeover.forward.forward_pass import CudaGraphs
from lm_eval_takeover.forward.self_check import check_kernels
from lm_eval_takeover.kernels import operations
from lm_eval_takeover.kernels.operations import ModelRead
from lm_eval_takeover.method.reading import PairReading
from lm_eval_takeover.method.registry import scores
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw_on_cpu, drawing

CUDA, OTHER, CPU = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")
ASKS = {"tolist", "numpy", "item", "__bool__", "__int__", "__float__", "__index__", "cpu", "nonzero", "masked_select",
        "unique"}  # fmt: skip
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
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


class SimulatedGpu(TorchFunctionMode):
    """While `counts`: `waits` are copies that were waited for, `uploads` those to the device, `faults` all other operations that
    need a value on the host.

    Faults are also operations that mix devices, kernels beside the current device, and uploads from memory that is not pinned.
    """

    def __init__(self):
        super().__init__()
        self.faults, self.waits, self.uploads, self.counts, self.current = [], 0, 0, False, CUDA

    def place(self, *values, device=CUDA):
        """These tensors are on the device."""
        for tensor in list_tensors(values):
            tensor.stands_on = device

    @contextmanager
    def make_current(self, device):
        # Inside an operation tensors say `cpu`.
        before, self.current = self.current, device if device.type == "cuda" else self.first
        try:
            yield
        finally:
            self.current = before

    def launch(self, name, *arguments):
        """A kernel in plain torch, by the way that leads to those of Triton."""
        self.first = _place(arguments[0])
        made = operations.launch(name, *arguments)
        if {_place(tensor) for tensor in list_tensors(arguments)} != {self.launched_on}:
            self.faults.append(f"{name}: launched on {self.launched_on} with tensors of another device")
        return made

    def compute(self, function):
        def kernel(*arguments):
            self.launched_on = self.current
            with torch._C.DisableTorchFunction():
                return function(*arguments)

        return kernel

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", str(function))
        given = list_tensors([args, kwargs])
        homes = list(dict.fromkeys(_place(one) for one in given if isinstance(_place(one), torch.device)))
        home = homes[0] if homes else None
        if name == "__get__":
            if function.__self__ is torch.Tensor.device and home:
                return home
            found = function(*args, **kwargs)
            if home:
                self.place(found, device=home)  # `.T`, `.data`
            return found
        if name == "pin_memory":
            args[0].stands_on = "pinned"
            self.uploads += self.counts
            return args[0]
        pinned = kwargs.pop("pin_memory", False)
        named = [one for one in (*args, kwargs.get("device")) if isinstance(one, (torch.device, str))]
        asked = [one for one in named if "cuda" in str(one)]
        args = tuple(CPU if any(one is cuda for cuda in asked) else one for one in args)
        if "device" in kwargs and asked:
            kwargs["device"] = CPU
        target = torch.device(asked[0]) if asked else home
        if target is not None and target.index is None:
            target = self.current
        found = function(*args, **kwargs)
        if name == "to" and asked and target != home:
            if home is None and (_place(given[0]) != "pinned" or not kwargs.get("non_blocking")):
                self._blame("to", "an upload that waits")
            found = found.clone() if found is given[0] else found
            self.place(found, device=target)
        elif name == "copy_" and home and "pinned" in (_place(given[0]), _place(given[1])):
            if not kwargs.get("non_blocking"):
                self._blame(name, "to the host, or an upload that waits")
        elif name == "to" and home and not asked and any(one == CPU for one in args[1:] if isinstance(one, torch.device)):
            self._blame("to", "the host waits")
            return found.clone() if found is given[0] else found
        elif asked:
            if name in ("tensor", "as_tensor") and home is None:
                self._blame(name, "an upload that waits")
            self.place(found, device=target)
        elif home:
            self._check(name, args, given, homes)
            if name not in ASKS:
                self.place(found, device=home)
        elif pinned:
            found.stands_on = "pinned"
        return found

    def _check(self, name, args, given, homes):
        if name in ASKS or (name == "where" and len(args) == 1):
            self._blame(name, "asks for values")
        if name in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            masks = [one for one in list_tensors(index) if one.dtype == torch.bool]
            if masks or any(isinstance(one, list) for one in index):
                self._blame(name, "by a list or a mask")
        elif len(homes) > 1 and name not in ("copy_", "to"):
            self.faults.append(f"{name}: mixes {homes}")
        elif any(one.dim() and _place(one) != homes[0] for one in given):
            self._blame(name, "mixes devices")

    def _blame(self, name, what):
        if self.counts:
            self.faults.append(f"{name}: {what}")


def _place(tensor):
    return tensor.__dict__.get("stands_on", "host")


def draw(logits, words, table, truncates, selects, rows):
    flat = logits.flatten(0, 1)
    asked = flat if rows is None else flat[rows.clamp(min=0)]
    samplings = [Sampling(temperature, top_p, int(top_k), min_p) for temperature, top_p, top_k, min_p in table.tolist()]
    given = asked.float().numpy(), words.numpy().view(np.uint64)
    each = [given] if len(samplings) == 1 else [[part[i : i + 1] for part in given] for i in range(len(asked))]
    with drawing():
        drawn = [draw_on_cpu(*one, how) for one, how in zip(each, samplings, strict=True)]
    return tuple(torch.from_numpy(np.concatenate(part)) for part in zip(*drawn, strict=True))


def _read(host, donor, tokens):
    read = PairReading(host.flatten(0, 1), None if donor is None else donor.flatten(0, 1), tokens)
    read.by_kernels = False
    none = torch.full(read.host_logits.shape[:1], torch.nan)
    columns = [none, none] if donor is None else [read.ce, read.rkl]
    for model in (read.host, None if donor is None else read.donor):
        known = {name for name in ModelRead._fields if model and (tokens is not None or name not in ("logprob", "rank"))}
        columns += [getattr(model, name) if name in known else none for name in ModelRead._fields]
    return torch.stack([column.float() for column in columns], -1)


def compute_words(keys, positions):
    pairs = zip(keys.numpy().view(np.uint64), positions.tolist(), strict=True)
    drawn = [np.random.Philox(key=key).random_raw(t + 1)[t] for key, t in pairs]
    return torch.from_numpy(np.array(drawn, np.uint64).view(np.int64))


def attend(queries, keys, values, mask, scale):
    group = queries.shape[2] // keys.shape[1]
    repeated = (part.repeat_interleave(group, 1) for part in (keys, values))
    attended = scaled_dot_product_attention(queries.transpose(1, 2), *repeated, attn_mask=mask, scale=scale)
    return attended.transpose(1, 2).contiguous()


def normalise(x, weight, eps):
    return Qwen3RMSNorm.forward(SimpleNamespace(weight=weight, variance_epsilon=eps), x)


def rotate(qkv, weight, cosines, sines, slots, positions, keys, values, eps):
    heads = qkv.shape[2] - 2 * keys.shape[2]
    qk, written = qkv[:, :, : heads + keys.shape[2]], qkv[:, :, heads + keys.shape[2] :]
    qk = qk if weight is None else normalise(qk, weight, eps)
    left, right = sines[positions, 0].chunk(2, -1)
    cos, sin = cosines[positions, 0], torch.cat([-left, right], -1)
    queries, rotated = apply_rotary_pos_emb(qk[:, :, :heads], qk[:, :, heads:], cos, sin, unsqueeze_dim=2)
    keys[slots[:, None], positions], values[slots[:, None], positions] = rotated, written
    return queries.contiguous()


def activate(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return silu(gate) * up


@contextmanager
def simulated_gpu(pair, monkeypatch, devices=(CUDA, CUDA)):
    """The models of a pair of its own on these devices of a `SimulatedGpu`."""
    gpu = SimulatedGpu()
    computed = {"draw": draw, "read_pair": _read, "compute_words": compute_words, "attend": attend}
    computed |= {"normalise": normalise, "rotate": rotate, "activate": activate}
    computed["jensen_shannon"] = lambda host, donor: scores.get("js")(host, donor).flatten()
    kernels = gpu.kernels = SimpleNamespace(**{name: gpu.compute(function) for name, function in computed.items()})
    library = torch.library.Library("lm_eval_takeover", "IMPL")
    for name in computed:
        library.impl(name, partial(gpu.launch, name), "CPU")

    class Event:
        recorded, reached = 0, 0  # numbers of events, in their order: what is behind one that was waited for has no wait

        def record(self, stream):
            Event.recorded += 1
            self.number = Event.recorded

        def query(self):
            Event.reached = max(Event.reached, self.number)
            return True

        def synchronize(self):
            gpu.waits += gpu.counts and self.number > Event.reached
            self.query()

    with monkeypatch.context() as patch:
        patch.setattr(operations, "import_module", lambda name: kernels)
        patch.setattr(operations, "REFUSED", set())
        check_kernels.cache_clear()
        for name, simulated in {
            "Event": Event,
            "get_device_name": lambda device: "simulated",
            "get_device_properties": lambda device: SimpleNamespace(total_memory=2**34),
            "current_stream": lambda device: None,
            "device": gpu.make_current,
        }.items():
            patch.setattr(torch.cuda, name, simulated)
        # vLLM's second model runner replaces it for the whole process where there is no GPU
        patch.setattr(torch.Tensor, "pin_memory", torch._C.TensorBase.pin_memory)
        patch.setattr(CudaGraphs, "run", run_captured)
        patch.setattr(CudaGraphs, "clear", lambda self: self._captured.clear())
        for member, device in zip(pair.members, devices, strict=False):
            _ = member.model  # loaded on the CPU
            patch.setattr(member, "device", device)
            patch.setattr(member, "prepared_pass", None)
            patch.setattr(member, "self_check", None)
            gpu.place(*member.model.parameters(), *member.model.buffers(), device=device)
        with gpu:
            yield gpu
    check_kernels.cache_clear()
    library._destroy()

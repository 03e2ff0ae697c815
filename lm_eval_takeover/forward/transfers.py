"""Copies of small tensors between host and device, without waiting; and rows padded with token 0 to one tensor."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lm_eval_takeover.kernels import operations as kernels


def choose_device(device: torch.device) -> torch.device:
    """Where logits of a model on this device are used: there if kernels run, else on the CPU (mps has no float64)."""
    return device if kernels.run_on(device) else torch.device("cpu")


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy values of the host to a device. A GPU copies from pinned memory, and the host does not wait."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


class HostCopy:
    """One copy of several small tensors to the host, which neither side waits for."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors: list[Tensor] = list(tensors)
        self._arrived: Any = None
        device = tensors[0].device
        if device.type == "cuda":
            packed = torch.cat([tensor.double().flatten() for tensor in tensors])  # exact up to 2^53
            host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True).copy_(packed, non_blocking=True)
            parts = zip(tensors, torch.split(host, [tensor.numel() for tensor in tensors]), strict=True)
            self._tensors = [part.view(tensor.shape) for tensor, part in parts]
            self._dtypes = [tensor.dtype for tensor in tensors]
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(device))

    @property
    def arrived(self) -> bool:
        """Whether `fetch` would not wait."""
        return self._arrived is None or bool(self._arrived.query())

    def fetch(self) -> list[Tensor]:
        """The tensors on the host; waits until the copy is complete."""
        if self._arrived is None:
            return self._tensors
        self._arrived.synchronize()
        return [tensor.to(dtype) for tensor, dtype in zip(self._tensors, self._dtypes, strict=True)]


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and mask `[rows, longest]`, the rows aligned at their ends; the mask is 0 on padding."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def pad_right(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Token ids `[rows, longest]`, the rows aligned at their starts."""
    longest = max(map(len, rows))
    return upload(torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows]), device)

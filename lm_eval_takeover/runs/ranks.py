"""Data parallel under `accelerate launch`, as lm-eval's `hf` does it: every rank answers a share of the documents."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from lm_eval.api.instance import Instance
from torch import Tensor

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.errors import ModelOutputError, TakeoverError
from lm_eval_takeover.method.request import Request

_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")  # as launchers and MPI set them


class Ranks:
    """The processes of this run; a single one without a launcher."""

    def __init__(self) -> None:
        self.rank, self.count = 0, 1
        self._accelerator: Any = None
        if any(int(os.environ.get(name) or 1) > 1 for name in _SIZES):
            from accelerate import Accelerator, InitProcessGroupKwargs

            # A rank waits for the longest sample of another one: as hf, practically without a limit.
            accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(weeks=52))])
            if accelerator.num_processes > 1:
                self._accelerator = accelerator
                self.rank, self.count = accelerator.process_index, accelerator.num_processes

    def place(self, arguments: ModelArguments) -> ModelArguments:
        """The arguments with this rank's own device, where there are several."""
        if self._accelerator is None or self._accelerator.device.type == "cpu":
            return arguments
        return replace(arguments, device=str(self._accelerator.device))

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor if self._accelerator is None else self._accelerator.gather(tensor)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """The objects of all ranks, on rank `dst`; None on the others."""
        gathered: list[Any] | None = [obj] * self.count if self.rank == dst else None
        if self._accelerator is not None:
            torch.distributed.gather_object(obj=obj, object_gather_list=gathered, dst=dst)
        return gathered

    def gather_or_raise(self, value: Any, failure: TakeoverError | None) -> list[Any]:
        """The values of all ranks, on every rank. Where a rank failed, every rank raises: its own failure, or the first one."""
        own = value, None if failure is None else str(failure)
        everyone = [own] * self.count
        if self._accelerator is not None:
            torch.distributed.all_gather_object(everyone, own)
        if failure is not None:
            raise failure
        for rank, (_, message) in enumerate(everyone):
            if message is not None:
                raise ModelOutputError(f"rank {rank}: {message}")
        return [value for value, _ in everyone]

    def drop_padding(self, instances: Sequence[Instance], requests: Sequence[Request]) -> list[int]:
        """Indices of the requests that count: lm-eval repeats the last one for equal shares, and its instance drops those."""
        indices = []
        for i, (instance, request) in enumerate(zip(instances, requests, strict=True)):
            if self.count == 1 or request.sample < (instance.repeats or 1):
                indices.append(i)
            elif not isinstance(instance.resps, WithoutPadding):
                instance.resps = WithoutPadding(instance.resps)
        return indices

    def barrier(self) -> None:
        if self._accelerator is not None:
            self._accelerator.wait_for_everyone()


class Padding(str):
    """The answer to a request that lm-eval repeats to give every rank as many. It is dropped."""

    __slots__ = ()


class WithoutPadding(list[Any]):
    """The responses of an instance, into which lm-eval appends every answer; padding is not taken in."""

    def append(self, response: Any) -> None:
        if not isinstance(response, Padding):
            super().append(response)

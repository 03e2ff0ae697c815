"""The gate of the fused pair.

On model runner V1, which a CPU has, it is vLLM's public `LogitsProcessor`: after every pass vLLM shows it all rows of a batch,
half-read prompts included, and it leaves each row one token. On V2, which GPUs have, it is the pair's own `ModelState` and its
sampler. V2 keeps a request at one index while it is in the batch: its slot. It removes a preempted one and adds it again by name.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor import LogitsProcessor as LogitsProcessorV1
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor
from vllm.v1.worker.gpu.sample.sampler import Sampler

from lm_eval_takeover.decoding.emission import list_logits
from lm_eval_takeover.vllm.settings import EngineSettings, RequestSettings, check_params
from lm_eval_takeover.vllm.slots import PAIR, Slots, Track, place_numbers


class TakeoverLogitsProcessor(LogitsProcessorV1):  # type: ignore[misc]
    """The rows of the batch are `0 .. n - 1`. Each has a track and the list of its tokens, which vLLM extends."""

    validate_params = staticmethod(check_params)

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.settings = EngineSettings.of(vllm_config.model_config)
        self.slots = Slots.open(vllm_config, self.settings, device)
        self._layers = vllm_config.compilation_config.static_forward_context
        self._rows: dict[int, tuple[Track, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for place in batch_update.removed:
            self._leave(place)
        for place, params, prompt, output in batch_update.added:
            self._leave(place)
            self._rows[place] = (self.slots.enter(RequestSettings.read(params), prompt or ()), output)
        for start, end, direction in batch_update.moved:
            moved, other = self._rows.pop(start, None), self._rows.pop(end, None)
            if moved is not None:
                self._rows[end] = moved
            if other is not None:
                if direction == MoveDirectionality.SWAP:
                    self._rows[start] = other
                else:
                    self.slots.leave(other[0])

    def _leave(self, place: int) -> None:
        row = self._rows.pop(place, None)
        if row is not None:
            self.slots.leave(row[0])

    def apply(self, logits: Tensor) -> Tensor:
        """logits `[rows, vocab]`: the guide's, or those of the only model. Returns the same with one token in each row."""
        rows = [self._rows[place] for place in range(len(logits))]
        tokens = self.slots.decide(
            [track for track, _ in rows],
            place_numbers([track.settings.begun + len(output) for track, output in rows], logits.device),
            list_logits(logits, self._layers[PAIR].base_logits, self.slots.policy.roles, self.settings.vocab),
        )
        return logits.fill_(-torch.inf).scatter_(-1, tokens, 0.0)


class TakeoverModelState(DefaultModelState):  # type: ignore[misc]
    """vLLM's state of a decoder, and that of the gate."""

    def __init__(self, vllm_config: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(vllm_config, *arguments, **options)
        self.settings = EngineSettings.of(vllm_config.model_config)
        self.slots = Slots.open(vllm_config, self.settings, self.device)
        self._tracks: dict[int, Track] = {}  # by the index of the request
        self._indices: dict[str, int] = {}  # by its name

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        super().add_request(req_index, new_req_data)
        params, prompt = new_req_data.sampling_params, new_req_data.prompt_token_ids or ()
        settings = RequestSettings.read(params, new_req_data.req_id)
        self._tracks[req_index] = self.slots.enter(settings, prompt, req_index)
        self._indices[new_req_data.req_id] = req_index

    def remove_request(self, req_id: str) -> None:
        super().remove_request(req_id)
        index = self._indices.pop(req_id, None)
        if index is not None:
            self.slots.leave(self._tracks.pop(index))

    def find_tracks(self, indices: np.ndarray[Any, Any]) -> list[Track] | None:
        """The requests at these indices. None for made-up rows, with which vLLM measures its memory."""
        tracks = [self._tracks.get(index) for index in indices.tolist()]
        return None if None in tracks else tracks  # type: ignore[return-value]

    def custom_sampler(self, sampler: Sampler) -> tuple[Sampler, Any]:
        """vLLM's sampler, but the gate draws. Log-probabilities for clients stay the guide's."""
        sampler.__class__ = GateSampler
        sampler.state = self
        return sampler, None


class GateSampler(Sampler):  # type: ignore[misc]
    """The class that vLLM's sampler gets. state: holds the requests."""

    state: TakeoverModelState

    def sample(
        self,
        logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: np.ndarray[Any, Any],
        pos: Tensor,
        *rest: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """The tokens `[rows]`, and the logits that they are drawn from."""
        state, slots = self.state, self.state.slots
        both = list_logits(logits, state.model.base_logits, slots.policy.roles, state.settings.vocab)
        tracks = state.find_tracks(idx_mapping_np)
        if tracks is not None:
            return slots.decide(tracks, slots.count_written(pos, idx_mapping), both)[:, 0], logits
        slots.rehearse(both)
        given = (logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, *rest)
        return super().sample(*given, **options)  # type: ignore[no-any-return]


class RequestCheck(LogitsProcessor):  # type: ignore[misc]
    """Checks requests before a worker sees them. Changes no logits."""

    validate_params = staticmethod(check_params)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        return False

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        return logits

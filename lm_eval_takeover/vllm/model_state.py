"""The gate on vLLM's model runner V2: the pair's own `ModelState`, through whose hook `custom_sampler` it draws.

V2 keeps a request at one index of its state for as long as it is in the batch. A request that is preempted is removed like one
that ended, and added again under the same name.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor
from vllm.v1.worker.gpu.sample.sampler import Sampler

from lm_eval_takeover.vllm.pair_model import list_logits
from lm_eval_takeover.vllm.settings import EngineSettings, RequestSettings, check_params
from lm_eval_takeover.vllm.slots import Slots, Track


class TakeoverModelState(DefaultModelState):  # type: ignore[misc]
    """vLLM's state of a decoder, with the gate's beside it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.settings = EngineSettings.of(self.model_config.hf_config)
        self.takeover_slots = Slots(self.settings.load_policy(), capacity=self.max_num_reqs, device=self.device)
        self._tracks: dict[int, Track] = {}  # by the index of the request
        self._indices: dict[str, int] = {}  # by its name
        self.speculator: Any = None  # of an engine with drafts
        self._prompt_lengths = torch.zeros(self.max_num_reqs, dtype=torch.int64, device=self.device)

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        super().add_request(req_index, new_req_data)
        params, prompt = new_req_data.sampling_params, new_req_data.prompt_token_ids or ()
        settings = RequestSettings.read(params, self.settings.seed)
        self._tracks[req_index] = self.takeover_slots.enter(new_req_data.req_id, settings, prompt)
        self._indices[new_req_data.req_id] = req_index
        self._prompt_lengths[req_index] = len(prompt)

    def remove_request(self, req_id: str) -> None:
        super().remove_request(req_id)
        index = self._indices.pop(req_id, None)
        if index is not None:
            self.takeover_slots.leave(self._tracks.pop(index))

    def find_tracks(self, indices: np.ndarray[Any, Any]) -> list[Track] | None:
        """The requests at these indices; None for made-up rows, by which vLLM measures its memory."""
        found = [self._tracks.get(index) for index in indices.tolist()]
        return None if None in found else found  # type: ignore[return-value]

    def count_written(self, read: Tensor, indices: Tensor) -> Tensor:
        """How many tokens are written `[rows]` of requests at these indices, of which the last is at position `read`.

        A prompt that is read in parts, perhaps once more after a preemption, shows its rows before there is a token to emit, at
        negative positions.
        """
        return read.long() + 1 - self._prompt_lengths[indices.long()]

    def custom_sampler(self, sampler: Sampler) -> tuple[Sampler, Any]:
        """vLLM's sampler, which asks the gate where it drew; log-probabilities that a client asks for stay the guide's."""
        if self.settings.block > 1:
            from lm_eval_takeover.vllm.speculator import DraftSampler

            both = DraftSampler(sampler, self)
            return both, both
        draw = sampler.sample

        def sample(
            logits: Tensor,
            expanded_idx_mapping: Tensor,
            idx_mapping: Tensor,
            idx_mapping_np: np.ndarray[Any, Any],
            pos: Tensor,
            *rest: Any,
            **options: Any,
        ) -> tuple[Tensor, Tensor]:
            tracks = self.find_tracks(idx_mapping_np)
            if tracks is None:
                self.takeover_slots.rehearse(self._list_logits(logits))
                drawn: tuple[Tensor, Tensor] = draw(
                    logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, *rest, **options
                )
                return drawn
            positions = self.count_written(pos, idx_mapping)
            return self.takeover_slots.decide(tracks, positions, self._list_logits(logits)).tokens[:, 0], logits

        sampler.sample = sample
        return sampler, None

    def _list_logits(self, logits: Tensor) -> dict[str, Tensor]:
        return list_logits(self.model, logits, self.takeover_slots.policy.roles, self.settings.vocab)


class RequestCheck(LogitsProcessor):  # type: ignore[misc]
    """Processes nothing: it is asked whether a request is sound before a worker sees it."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse what no client may set: a ValueError."""
        check_params(sampling_params)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        return False

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        return logits

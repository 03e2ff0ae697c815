"""The gate of the fused pair on vLLM's model runner V1, which a CPU has: vLLM's public `LogitsProcessor`.

After every pass vLLM shows it all rows of a batch, half-read prompts included. It leaves each row one token.
"""

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from lm_eval_takeover.decoding.emission import list_logits
from lm_eval_takeover.vllm.settings import EngineSettings, RequestSettings, check_params
from lm_eval_takeover.vllm.slots import Slots, Track, pairs, place_numbers


class TakeoverLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """The rows of the batch are `0 .. n - 1`. Each has a track and the list of its tokens, which vLLM extends."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.settings = EngineSettings.of(vllm_config.model_config)
        self.slots = Slots.open(vllm_config, self.settings, device)
        self._rows: dict[int, tuple[Track, list[int]]] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise a ValueError for settings that no client may set, before a worker sees them."""
        check_params(sampling_params)

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
        base_logits = pairs[self.settings.key].base_logits
        emitted = self.slots.decide(
            [track for track, _ in rows],
            place_numbers([track.settings.begun + len(output) for track, output in rows], logits.device),
            list_logits(logits, base_logits, self.slots.policy.roles, self.settings.vocab),
        )
        return logits.fill_(-torch.inf).scatter_(-1, emitted.tokens, 0.0)

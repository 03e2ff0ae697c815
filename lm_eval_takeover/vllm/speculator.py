"""Drafts on vLLM's model runner V2, which a GPU has: the host is its draft model, the donor its target.

Which drafted tokens stand is decided by `drafts`; here is where V2 keeps what that asks for. Everything stays on the device, so
vLLM schedules the next step before it knows how much of a draft stands.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.input_batch import InputBatch, get_num_sampled_and_rejected
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from lm_eval_takeover.vllm.drafts import Batch, Verifier
from lm_eval_takeover.vllm.gate_step import share
from lm_eval_takeover.vllm.model_state import TakeoverModelState
from lm_eval_takeover.vllm.slots import Track


class TakeoverSpeculator(StandaloneARSpeculator):  # type: ignore[misc]
    """The host as drafter: tokens by the race. vLLM's own cache of logits keeps those of the last draft of each request."""

    model_state: TakeoverModelState
    num_speculative_steps: int
    _tracks: list[Track] | None = None  # of the rows that are drafted for; None for made-up rows
    _place = 0  # of the draft that is drawn next
    _has_read: InputBatch | None = None  # the batch whose tokens `read_next` has shown the host

    def set_attn(self, model_state: TakeoverModelState, *rest: Any) -> None:
        super().set_attn(model_state, *rest)
        model_state.speculator = self

    def propose(
        self, input_batch: InputBatch, *rest: Any, num_speculative_tokens: int | None = None, **options: Any
    ) -> Tensor:
        """Drafts `[rows, block]`, `num_speculative_tokens` of them drawn. The first follows the token that was just emitted."""
        drafted: Tensor = self.draft_tokens[: input_batch.num_reqs]
        if num_speculative_tokens == 0 and self._has_read is input_batch:
            return drafted  # the next step has no drafts, so the host reads there what is new
        self._tracks = None if options.get("dummy_run") else self.model_state.find_tracks(input_batch.idx_mapping_np)
        self._place, block = 0, self.num_speculative_steps
        self.num_speculative_steps = block if num_speculative_tokens is None else max(1, num_speculative_tokens)
        try:
            super().propose(input_batch, *rest, num_speculative_tokens=num_speculative_tokens, **options)
        finally:
            self.num_speculative_steps = block
        return drafted

    def sample_draft(
        self, hidden_states: Tensor, sample_src_positions: Tensor, idx_mapping: Tensor, *rest: Any, **options: Any
    ) -> Tensor:
        logits = self.model.compute_logits(hidden_states)
        if self._tracks is None:
            return logits.argmax(-1)  # type: ignore[no-any-return]
        if self.draft_logits is not None:
            self.draft_logits[idx_mapping, self._place] = logits.to(self.draft_logits.dtype)
        self._place += 1
        state = self.model_state
        positions = state.count_written(sample_src_positions, idx_mapping)
        return state.takeover_slots.draw(self._tracks, positions, share(logits, state.settings.vocab))

    def read_logits(self, indices: Tensor, width: int) -> Tensor:
        """Of requests at these indices, the logits `[rows, width, vocab]` of their last drafts."""
        return share(self.draft_logits[indices, :width], self.model_state.settings.vocab)

    @torch.inference_mode()
    def read_next(self, batch: InputBatch, last: Tensor) -> Tensor:
        """The host's logits `[rows, vocab]` behind the tokens that the target has just read, `last` being their last ones."""
        self._has_read = batch
        rows, count, buffers = batch.num_reqs, batch.num_tokens, self.input_buffers
        buffers.query_start_loc[: rows + 1].copy_(batch.query_start_loc[: rows + 1])
        buffers.seq_lens[:rows].copy_(batch.seq_lens[:rows])
        places = self.block_tables.compute_slot_mappings(
            batch.idx_mapping, buffers.query_start_loc[: rows + 1], batch.positions[:count], count
        )
        attention = self._build_attn_metadata(
            num_reqs=rows,
            batch_desc=BatchExecutionDescriptor(cg_mode=CUDAGraphMode.NONE, num_tokens=count, num_reqs=rows),
            query_start_loc_np=batch.query_start_loc_np[: rows + 1],
            seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound,
            step=0,
            slot_mappings=places,
        )
        by_layer = build_slot_mappings_by_layer(places, self.kv_cache_config)
        hidden = self._run_model(batch.input_ids[:count], batch.positions[:count], attention, by_layer, None)
        return share(self.model.compute_logits(hidden[last]), self.model_state.settings.vocab)


class DraftSampler(Sampler):  # type: ignore[misc]
    """vLLM's sampler and its rejection sampler in one: the policy decides what is emitted, of rows with a draft and without."""

    enable_adaptive_verification = False  # vLLM asks its rejection sampler

    def __init__(self, sampler: Sampler, state: TakeoverModelState) -> None:
        self.__dict__.update(vars(sampler))
        self.state = state
        self.verifier = Verifier(state.takeover_slots, state.settings.vocab)

    def __call__(self, logits: Tensor, input_batch: InputBatch, *drafts: Any) -> SamplerOutput:
        """What stands of each row: ids `[rows, k]` and how many of them. `logits` are the target's."""
        tracks = self.state.find_tracks(input_batch.idx_mapping_np)
        if tracks is None:  # vLLM measures its memory with made-up rows
            self.verifier.rehearse(self.state.settings.block, self.state.dtype)
            return super().__call__(logits, input_batch)
        batch, last = self._describe_batch(input_batch, tracks)
        speculator, undrafted = self.state.speculator, None
        if self.verifier.keeps_drafts and batch.needs_host:
            undrafted = speculator.read_next(input_batch, last)
        tokens, stands = self.verifier.verify(
            batch,
            logits,
            lambda rows, width: speculator.read_logits(input_batch.idx_mapping[rows], width),
            undrafted,
        )
        emitted, rejected = get_num_sampled_and_rejected(
            stands.int(),
            input_batch.seq_lens,
            input_batch.cu_num_logits,
            input_batch.idx_mapping,
            self.req_states.prefill_len.gpu,
        )
        return SamplerOutput(tokens, None, None, emitted, rejected)

    def _describe_batch(self, batch: InputBatch, tracks: list[Track]) -> tuple[Batch, Tensor]:
        """What `drafts` asks of a batch, and where among its tokens the last of each row stands, drafts left out."""
        scheduled = batch.num_draft_tokens_per_req
        if scheduled is None:
            scheduled = np.zeros(batch.num_reqs, np.int32)
        # vLLM fills up with made-up drafts what it reads the last prompt token of.
        drafts = np.where(batch.is_prefilling_np, 0, scheduled)
        ends = batch.num_computed_tokens_np + batch.num_scheduled_tokens
        first = batch.cu_num_logits[:-1].long()
        last = batch.logits_indices[first]
        described = Batch(
            tracks,
            self.state.count_written(batch.positions[last], batch.idx_mapping),
            first,
            batch.input_ids[batch.logits_indices],
            drafts.tolist(),
            (ends >= batch.prefill_len_np).tolist(),
        )
        return described, last

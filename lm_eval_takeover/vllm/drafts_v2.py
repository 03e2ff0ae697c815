"""Drafts on vLLM's model runner V2, which GPUs have: the host is vLLM's draft model, the donor its target.

`drafts` decides which drafted tokens stand; here is where V2 keeps what that needs. Everything stays on the device, so vLLM
schedules the next step before it knows how much of a draft stands.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.platforms import current_platform
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from lm_eval_takeover.vllm.drafts import Batch, Verifier
from lm_eval_takeover.vllm.fused_v2 import TakeoverModelState
from lm_eval_takeover.vllm.gate_step import share
from lm_eval_takeover.vllm.slots import Track, WorkerExtension, place_numbers

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class TakeoverWorker(PlatformWorker, WorkerExtension):  # type: ignore[misc]
    """vLLM's worker of this platform, `worker_cls` of an engine with drafts. vLLM has no registry of drafters."""

    def init_device(self) -> None:
        super().init_device()
        self.model_runner.speculator.__class__ = TakeoverSpeculator


class TakeoverSpeculator(StandaloneARSpeculator):  # type: ignore[misc]
    """The host as drafter. It draws by the race; vLLM's `draft_logits` keep the logits of each request's last draft."""

    model_state: "DraftingModelState"
    num_speculative_steps: int
    _tracks: list[Track] | None = None  # of the rows that are drafted for; None for made-up rows
    _place = 0  # of the draft that is drawn next
    _reads = False  # while `read_next` runs
    _read: Tensor  # what it has read
    _has_read: InputBatch | None = None  # the batch whose tokens it has shown the host

    def set_attn(self, model_state: "DraftingModelState", *rest: Any) -> None:
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
        state = self.model_state
        if self._reads:
            self._read = share(logits, state.settings.vocab)
            return torch.zeros_like(sample_src_positions)
        if self._tracks is None:
            return logits.argmax(-1)  # type: ignore[no-any-return]
        if self.draft_logits is not None:
            self.draft_logits[idx_mapping, self._place] = logits.to(self.draft_logits.dtype)
        self._place += 1
        positions = state.count_written(sample_src_positions, idx_mapping)
        return state.slots.draw(self._tracks, positions, share(logits, state.settings.vocab))

    def read_logits(self, indices: Tensor, width: int) -> Tensor:
        """Of requests at these indices, the logits `[rows, width, vocab]` of their last drafts."""
        return share(self.draft_logits[indices, :width], self.model_state.settings.vocab)

    def read_next(self, batch: InputBatch, last: Tensor, behind: Sequence[int]) -> Tensor:
        """The host's logits `[rows, vocab]` behind the tokens that the target has just read.

        last: the place of each row's last token in the batch; behind: how many places follow it in its row, -1 for a row whose
        places are all tokens of a draft. vLLM's drafter reads the tokens that were not rejected, then the emitted one: here the
        last token stands for the emitted one.
        """
        emitted = torch.zeros(self.model_state.slots.capacity, dtype=torch.int64, device=last.device)
        emitted[batch.idx_mapping] = batch.input_ids[last].long()
        rejected, unread = place_numbers([count + 1 for count in behind], last.device), torch.zeros_like(emitted)
        self._has_read, self._reads, block = batch, True, self.num_speculative_steps
        self.num_speculative_steps = 1
        try:
            super().propose(batch, *[None] * 4, unread, rejected, emitted, *[unread] * 3, num_speculative_tokens=1)
        finally:
            self._reads, self.num_speculative_steps = False, block
        return self._read


class DraftingModelState(TakeoverModelState):
    """The state of an engine with drafts."""

    speculator: TakeoverSpeculator

    def custom_sampler(self, sampler: Sampler) -> tuple[Sampler, Any]:
        """The same one twice: rows with a draft and rows without are decided together."""
        sampler.__class__ = DraftSampler
        sampler.state, sampler.verifier = self, Verifier(self.slots, self.settings.vocab)
        return sampler, sampler


class DraftSampler(Sampler):  # type: ignore[misc]
    """vLLM's sampler becomes one of this class, and its rejection sampler, too: the policy decides what is emitted."""

    enable_adaptive_verification = False  # vLLM asks its rejection sampler
    state: DraftingModelState
    verifier: Verifier

    def __call__(self, logits: Tensor, input_batch: InputBatch, *drafts: Any) -> SamplerOutput:
        """What stands of each row: ids `[rows, k]` and how many of them. `logits` are the target's."""
        tracks = self.state.find_tracks(input_batch.idx_mapping_np)
        if tracks is None:  # vLLM measures its memory with made-up rows
            self.verifier.rehearse(self.state.settings.block, self.state.dtype)
            return super().__call__(logits, input_batch)
        speculator, undrafted = self.state.speculator, None
        batch, last, scheduled = self._describe_batch(input_batch, tracks)
        if self.verifier.keeps_drafts and batch.needs_host:
            behind = [-1 if drafted else count for drafted, count in zip(batch.drafts, scheduled, strict=True)]
            undrafted = speculator.read_next(input_batch, last, behind)
        tokens, stands = self.verifier.verify(
            batch,
            logits,
            lambda rows, width: speculator.read_logits(input_batch.idx_mapping[rows], width),
            undrafted,
        )
        whole = place_numbers(batch.whole, logits.device)
        emitted = (stands * whole).int()
        rejected = (input_batch.cu_num_logits.diff() * whole).int() - emitted
        return SamplerOutput(
            sampled_token_ids=tokens,
            logprobs_tensors=None,
            num_nans=None,
            num_sampled=emitted,
            num_rejected=rejected,
        )

    def _describe_batch(self, batch: InputBatch, tracks: list[Track]) -> tuple[Batch, Tensor, list[int]]:
        """What `drafts` asks of a batch; where the last token of each row stands, drafts left out; places behind that."""
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
        return described, last, scheduled.tolist()

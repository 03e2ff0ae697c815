"""Drafts on vLLM's model runner V2, which GPUs have: the host is vLLM's draft model, the donor its target.

The policy says which token is emitted at each position of a draft (`emission`). The first token that is not the drafted one ends
the draft. In a row without a draft the host draws one token as if it had drafted it. Nothing here waits for the device, so vLLM
schedules ahead of knowing what stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config.compilation import CUDAGraphMode
from vllm.platforms import current_platform
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator, prepare_prefill_inputs
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import SpeculatorCudaGraphManager

from lm_eval_takeover.decoding.emission import count_standing, share
from lm_eval_takeover.method.policy import DIRECTIONS
from lm_eval_takeover.vllm.fused import TakeoverModelState
from lm_eval_takeover.vllm.slots import Slots, Track, WorkerExtension, place_numbers

PIECE = 2**28  # bytes of both models' logits that are gathered at a time


@dataclass(frozen=True, slots=True)
class Batch:
    """What the target has read. Each row has logits behind its text and behind each drafted token."""

    tracks: Sequence[Track]
    positions: Tensor  # `[rows]` tokens of the text before, negative in an unfinished prompt
    first: Tensor  # `[rows]` the place of a row's first logit
    read: Tensor  # `[logits]` the token before each logit
    drafts: Sequence[int]  # numbers of drafted tokens
    whole: Sequence[bool]  # the prompt is read to its end


class DraftVerifier:
    """Takes the place of vLLM's rejection sampler.

    drafted: the host's logits `[slots, k, vocab]` of each request's last draft. Without a draft, the first are those behind the
    text. None for a guide that writes alone, where the target's own draws decide.
    """

    def __init__(self, slots: Slots, vocab: int, drafted: Tensor | None) -> None:
        self.slots, self.vocab, self.drafted = slots, vocab, drafted
        self.drafting, self.verifying = DIRECTIONS[slots.policy.direction]

    def verify(self, batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens `[rows, k]`, and how many of each row stand, `[rows]`. logits: the target's, raw."""
        width = max(batch.drafts) + (self.drafted is None)  # a lone guide emits one token more
        place = torch.arange(max(1, width), device=self.slots.device)
        counts = place_numbers(batch.drafts, self.slots.device)
        at, read = (batch.first[:, None] + torch.minimum(near, counts[:, None]) for near in (place, place + 1))
        tokens = batch.read[read].long().clamp(0, self.vocab - 1)  # behind a row's draft: any token
        parts, step = [], self._count_rows(len(place), logits.element_size())
        for rows in (slice(start, start + step) for start in range(0, len(batch.drafts), step)):
            by_role = {self.verifying: share(logits[at[rows]], self.vocab)}
            drafted, tracks = None, batch.tracks[rows]
            if self.drafted is not None:
                slots = self.slots.place(tracks)
                host = by_role[self.drafting] = share(self.drafted[slots, : len(place)], self.vocab)
                drafted = tokens[rows]
                if 0 in batch.drafts[rows]:  # the host draws there as if it had drafted
                    bare = counts[rows] == 0
                    drawn = self.slots.draw(slots, batch.positions[rows], host[:, 0], bare)
                    drafted[:, 0] = torch.where(bare, drawn, drafted[:, 0])
            drafts = [count or -1 for count in batch.drafts[rows]]
            parts.append(self.slots.decide(tracks, batch.positions[rows], by_role, drafted=drafted, drafts=drafts))
        emitted_tokens = torch.cat(parts)
        # The host's draw stands for a draft.
        lengths = counts if self.drafted is None else counts.clamp(min=1)
        stands, _ = count_standing(emitted_tokens, tokens, lengths, bonus=self.drafted is None)
        alone = place_numbers([track.settings.lockstep for track in batch.tracks], tokens.device).bool()
        return emitted_tokens, torch.where(alone, stands.clamp(max=1), stands)

    def rehearse(self, block: int, logits: Tensor) -> None:
        """Allocate the memory of the largest step while vLLM measures its own; stored drafts are not counted.

        logits `[rows, vocab]`: some of the target's. The draws of `verify` and of the drafter are rehearsed, too.
        """
        capacity, device = self.slots.capacity, self.slots.device
        width = block + (self.drafted is None)
        some = min(capacity, self._count_rows(width, logits.element_size()))
        read = logits.new_zeros(capacity * (block + 1), logits.shape[1])
        target = share(read[: some * width].clone().view(some, width, -1), self.vocab)
        drafted = torch.zeros(some, block, dtype=torch.int64, device=device)
        nobody, host = drafted[:1, 0] - 1, target[:1].clone()
        for asked in (None, nobody < 0):
            self.slots.draw(nobody, -nobody, host[:, 0], asked)
        if self.drafted is None:
            return self.slots.rehearse({self.verifying: target})
        self.slots.rehearse({self.drafting: target.clone(), self.verifying: target}, drafted=drafted)

    def _count_rows(self, width: int, size: int) -> int:
        """How many rows of this many positions are decided at a time; `size` is the bytes of a logit."""
        return max(1, PIECE // (2 * width * self.vocab * size))


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
    """The host as drafter: it draws by the race and keeps the logits of its draws.

    A draft is two CUDA graphs, which vLLM's own drafter does not have: the first token, if all rows read equally many tokens
    for it, and the other ones. They read and write static buffers, and the host prepares nothing between them. A graph may have
    more rows than the batch. Behind the batch, the index of a request is -1 and a row has no tokens.
    """

    model_state: "DraftingModelState | None" = None
    num_speculative_steps: int
    _has_read: InputBatch | None = None  # the batch that `read_next` has shown the host
    _firsts: Any = None  # graphs of first tokens, one for each number of rows and of tokens that a row reads
    _others: Any = None  # graphs of the other tokens, one for each number of rows and length of a draft
    _made_up = False  # whether vLLM's batch stands for no request

    def set_attn(self, model_state: "DraftingModelState", *rest: Any) -> None:
        super().set_attn(model_state, *rest)
        model_state.speculator = self

    def propose(self, input_batch: InputBatch, *rest: Any, num_speculative_tokens: int | None = None, **options: Any) -> Tensor:
        """Drafts `[rows, block]`, `num_speculative_tokens` of them drawn. The first follows the token that was just emitted."""
        drafted: Tensor = self.draft_tokens[: len(input_batch.idx_mapping_np)]
        if num_speculative_tokens == 0 and self._has_read is input_batch:
            return drafted  # the next step has no drafts; the host reads new tokens there
        self._made_up = bool(options.get("dummy_run"))
        if self._made_up:
            options["skip_attn_for_dummy_run"] = True  # vLLM would write keys and values of the requests at these indices
        block = self.num_speculative_steps
        self.num_speculative_steps = block if num_speculative_tokens is None else max(1, num_speculative_tokens)
        try:
            super().propose(input_batch, *rest, num_speculative_tokens=num_speculative_tokens, **options)
        finally:
            self.num_speculative_steps, self._made_up = block, False
        return drafted

    def sample_draft(
        self,
        hidden_states: Tensor,
        sample_src_positions: Tensor,
        idx_mapping: Tensor,
        temperature: Tensor | None,
        seeds: Tensor | None,
        draft_step: Tensor,
        *rest: Any,
    ) -> Tensor:
        """Ids `[rows]`. Capturable: it reads tables on the device by vLLM's index of a request, -1 for padding."""
        logits, state = self.model.compute_logits(hidden_states), self.model_state
        if state is None or self._made_up:  # vLLM measures its memory, or keeps step with other engines
            return logits.argmax(-1)  # type: ignore[no-any-return]
        logits, slots = share(logits, state.settings.vocab), idx_mapping.long()
        if state.drafted is not None:
            # Expanded, since the host would wait for a scalar index.
            state.drafted[state.kept_at[slots], draft_step.expand_as(slots)] = logits.to(state.drafted.dtype)
        return state.slots.draw(slots, state.slots.count_written(sample_src_positions, slots), logits)

    def read_next(self, batch: InputBatch, last: Tensor, behind: Sequence[int], drafted: Sequence[int]) -> None:
        """Let the host read the target's tokens of this step. Keeps its logits behind the text of rows without a draft.

        last: the place of each row's last token in the batch. behind: the number of places after it in its row, -1 for a row with
        a draft. drafted: the slots of those rows, whose logits are kept already. vLLM's drafter reads the accepted tokens, then
        the emitted one; here the last token of a text takes its place.
        """
        state = self.model_state
        assert state is not None
        emitted = torch.zeros(state.slots.capacity, dtype=torch.int64, device=last.device)
        emitted[batch.idx_mapping.long()] = batch.input_ids[last].long()
        rejected, unread = place_numbers([count + 1 for count in behind], last.device), torch.zeros_like(emitted)
        numbers = place_numbers(drafted, last.device)
        state.kept_at.index_fill_(0, numbers, state.slots.capacity)
        self._has_read = batch
        self.propose(batch, *[None] * 4, unread, rejected, emitted, *[unread] * 3, num_speculative_tokens=1)
        state.kept_at[numbers] = numbers

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """A graph updates the metadata of attention itself; vLLM names the backends that can. Others are eager."""
        single = self.vllm_config.parallel_config.data_parallel_size == 1
        if single and cudagraph_mode.decode_mode() == CUDAGraphMode.FULL and self.supports_decode_metadata_update:
            made = self.vllm_config, self.idx_mapping.device, CUDAGraphMode.FULL_DECODE_ONLY
            self._others = SpeculatorCudaGraphManager(*made, 1)
            builders = [group.get_metadata_builder() for groups in self.attn_groups for group in groups]
            # FlashInfer takes rows that read more than its threshold for prompts, which graphs cannot have.
            if all(builder.reorder_batch_threshold is None for builder in builders):
                self._firsts = SpeculatorCudaGraphManager(*made, self.num_speculative_steps + 2)

    def capture(self) -> None:
        if self._others is None:
            return
        self.idx_mapping.fill_(-1)
        self.last_token_indices.zero_()
        given = (self.model_state, self.input_buffers, self.block_tables, self.attn_groups, self.kv_cache_config)
        if self._firsts is not None:
            self._firsts.capture(self._draft_first, *given, "Capturing first tokens of drafts")
        by_length = self.speculative_config.uses_dynamic_speculative_decoding()
        self._others.capture(self._draft_others, *given, "Capturing other tokens of drafts", by_length)

    def _draft_first(self, rows: int, tokens: int, *attention: Any) -> None:
        """Captured: the first token of each row, which reads what the target has read."""
        for group in (group for groups in self.attn_groups for group in groups):
            group.map_to_kernel_block_table(self.block_tables.input_block_tables[group.kv_cache_group_id][:rows])
        ids, positions = self.expanded_input_ids[:tokens], self.expanded_positions[:tokens]
        self._draft_token(0, ids, positions, self.last_token_indices[:rows], attention)

    def _draft_others(self, rows: int, tokens: int, *attention: Any, num_speculative_steps: int) -> None:
        """Captured: vLLM's loop over the other tokens, with lengths and starts of rows computed on the device."""
        buffers, drafting = self.input_buffers, self.idx_mapping[:rows] >= 0
        ids, positions = buffers.input_ids[:rows], buffers.positions[:rows]
        positions.copy_(self.expanded_positions[self.last_token_indices[:rows]])
        buffers.query_start_loc[1 : rows + 1] = drafting.cumsum(0)
        for step in range(1, num_speculative_steps):
            ids.copy_(self.draft_tokens[:rows, step - 1].clamp(min=0))  # vLLM leaves -1 behind the batch
            positions.add_(1).clamp_(max=self.max_model_len - 1)
            buffers.seq_lens[:rows] = (positions + 1) * drafting
            self._draft_token(step, ids, positions, self.arange_gpu[:rows], attention)

    def _draft_token(self, step: int, ids: Tensor, positions: Tensor, last: Tensor, attention: Sequence[Any]) -> None:
        """Captured: a pass over tokens, and a draw in each row behind the token at its place `last` `[rows]`.

        attention: its metadata and the places of keys, both in buffers that this fills.
        """
        rows, (metadata, places, *_) = len(last), attention
        indices, starts = self.idx_mapping[:rows], self.input_buffers.query_start_loc[: rows + 1]
        self.block_tables.compute_slot_mappings(indices, starts, positions, len(ids))
        self._update_draft_decode_metadata(metadata, rows)
        hidden = self._run_model(ids, positions, metadata, places, None)
        self.current_draft_step.fill_(step)
        drawn = self.sample_draft(hidden[last], positions[last], indices, None, None, self.current_draft_step)
        self.draft_tokens[:rows, step] = drawn

    def _prefill(self, batch: InputBatch, rejected: Tensor, sampled: Tensor, rows: int, skip_attn: bool, *rest: Any) -> None:
        read = batch.num_scheduled_tokens + 1  # the emitted token, too
        if skip_attn or (read != read[0]).any() or not (graph := self._find_graph(self._firsts, rows, int(read[0]))):
            super()._prefill(batch, rejected, sampled, rows, skip_attn, *rest)
            return
        filled = self.expanded_input_ids, self.expanded_positions, self.last_token_indices
        prepare_prefill_inputs(self.input_buffers, batch, sampled, rejected, *filled, self.max_num_reqs, self.max_model_len)
        self._firsts.run_fullgraph(graph)

    def _multi_step_decode(self, batch: InputBatch, rejected: Tensor, rows: int, skip_attn: bool, *rest: Any) -> None:
        if skip_attn or not (graph := self._find_graph(self._others, rows, 1)):
            super()._multi_step_decode(batch, rejected, rows, skip_attn, *rest)
        else:
            self._others.run_fullgraph(graph)

    def _find_graph(self, graphs: Any, rows: int, read: int) -> Any:
        """The smallest graph with enough rows that each read so many tokens. None if there is none."""
        length = self.num_speculative_steps
        fitting = (
            graph
            for graph in (graphs.graphs if graphs else ())
            if graph.num_reqs >= rows and graph.uniform_token_count == read
            if getattr(graph, "num_speculative_tokens", length) == length
        )
        return min(fitting, key=lambda graph: graph.num_reqs, default=None)


class DraftingModelState(TakeoverModelState):
    """With the host's logits at each request's last draft: `drafted` `[slots, block, vocab]`, in row `kept_at[slot]`."""

    speculator: TakeoverSpeculator

    def __init__(self, vllm_config: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(vllm_config, *arguments, **options)
        slots, settings, dtype = self.slots.capacity + 1, self.settings, vllm_config.model_config.dtype
        self.kept_at = torch.arange(slots, device=self.device)
        self.drafted: Tensor | None = None
        if self.slots.policy.host is not None:
            self.drafted = torch.zeros(slots, settings.block, settings.vocab, dtype=dtype, device=self.device)

    def custom_sampler(self, sampler: Sampler) -> tuple[Sampler, Any]:
        """The same one twice: rows with a draft and rows without are decided together."""
        sampler.__class__ = DraftSampler
        sampler.state, sampler.verifier = self, DraftVerifier(self.slots, self.settings.vocab, self.drafted)
        return sampler, sampler


class DraftSampler(Sampler):  # type: ignore[misc]
    """The class that vLLM's sampler and rejection sampler get: the policy decides which tokens are emitted."""

    enable_adaptive_verification = False  # vLLM asks its rejection sampler
    state: DraftingModelState
    verifier: DraftVerifier

    def __call__(self, logits: Tensor, input_batch: InputBatch, *drafts: Any) -> SamplerOutput:
        """The accepted tokens of each row: ids `[rows, k]` and their number. `logits` are the target's."""
        tracks = self.state.find_tracks(input_batch.idx_mapping_np)
        if tracks is None:  # vLLM measures its memory with made-up rows
            self.verifier.rehearse(self.state.settings.block, logits)
            return super().__call__(logits, input_batch)
        batch, last, scheduled = self._describe_batch(input_batch, tracks)
        bare = (whole and not count for whole, count in zip(batch.whole, batch.drafts, strict=True))
        if self.state.drafted is not None and any(bare):  # rows without a draft emit what the host draws
            behind = [-1 if drafted else count for drafted, count in zip(batch.drafts, scheduled, strict=True)]
            slots = [int(slot) for slot, count in zip(input_batch.idx_mapping_np, batch.drafts, strict=True) if count]
            self.state.speculator.read_next(input_batch, last, behind, slots)
        tokens, stands = self.verifier.verify(batch, logits)
        whole = place_numbers(batch.whole, logits.device)
        emitted = (stands * whole).int()
        rejected = (input_batch.cu_num_logits.diff() * whole).int() - emitted
        return SamplerOutput(
            sampled_token_ids=tokens, logprobs_tensors=None, num_nans=None, num_sampled=emitted, num_rejected=rejected
        )

    def _describe_batch(self, batch: InputBatch, tracks: list[Track]) -> tuple[Batch, Tensor, list[int]]:
        """The batch for `drafts`, the place of each row's last token before its draft, and the number of places behind it."""
        scheduled = batch.num_draft_tokens_per_req
        if scheduled is None:
            scheduled = np.zeros(len(tracks), np.int32)
        # vLLM gives rows made-up drafts while it reads the last prompt token.
        drafts = np.where(batch.num_computed_tokens_np < batch.prefill_len_np, 0, scheduled)
        ends = batch.num_computed_tokens_np + batch.num_scheduled_tokens
        first = batch.cu_num_logits[:-1].long()
        last = batch.logits_indices[first]
        described = Batch(
            tracks,
            self.state.slots.count_written(batch.positions[last], batch.idx_mapping),
            first,
            batch.input_ids[batch.logits_indices],
            drafts.tolist(),
            (ends >= batch.prefill_len_np).tolist(),
        )
        return described, last, scheduled.tolist()

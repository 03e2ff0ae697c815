"""Drafts on vLLM's model runner V1, which a CPU has: the host is its draft model, the donor its target.

Forward, and for a guide that writes alone, the base drafts and the guide verifies. Which drafted tokens stand is decided by
`drafts`; here is where V1 keeps what that asks for. Of the runner two methods are replaced in its instance: `_sample`, which gets
the target's logits, and `sample_tokens` around it, which knows the batch that they came from. The drafter draws by the race and
keeps its logits for the scores.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.config import CUDAGraphMode
from vllm.forward_context import set_forward_context
from vllm.v1.outputs import SamplerOutput
from vllm.v1.spec_decode.draft_model import DraftModelProposer

from lm_eval_takeover.vllm.drafts import Batch, Verifier
from lm_eval_takeover.vllm.gate_step import share
from lm_eval_takeover.vllm.settings import EngineSettings, RequestSettings
from lm_eval_takeover.vllm.slots import Slots, Track, place_numbers

_NO_TOKEN = -1  # vLLM's mark for places of the output behind what is emitted


def gate_drafts(runner: Any, block: int) -> Slots:
    """Have this runner draft by the race, and ask the policy where rejection stood. Returns the state of the requests."""
    gate = BlockwiseGate(runner)
    runner.drafter = TakeoverProposer(runner.vllm_config, runner.device, runner, gate)
    run = runner.sample_tokens

    def sample_tokens(grammar_output: Any) -> Any:
        state = runner.execute_model_state
        gate.attention = None if state is None else state.spec_decode_common_attn_metadata
        return run(grammar_output)

    runner.sample_tokens = sample_tokens
    runner._sample = gate.sample
    measure = runner.profile_run

    def profile_run(*arguments: Any, **options: Any) -> None:
        measure(*arguments, **options)
        gate.rehearse(block)

    runner.profile_run = profile_run
    return gate.slots


class TakeoverProposer(DraftModelProposer):  # type: ignore[misc]
    """The host as drafter: tokens by the race, logits kept."""

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any, gate: "BlockwiseGate") -> None:
        super().__init__(vllm_config, device, runner)
        self.use_heterogeneous_vocab, self.vocab_mapping = False, None  # the ids mean the same: only padding differs
        self.runner, self.gate = runner, gate
        self.logits: dict[str, Tensor] = {}  # `[k, vocab]` of the last draft of each request, in the batch or out of it
        self._positions = torch.zeros(0, dtype=torch.int64)
        self._drawn_from: list[Tensor] = []  # raw logits `[rows, vocab]` of each position of the draft in the making
        self._has_read: Any = None  # what `read_next` has shown the host

    def propose(
        self,
        *,
        num_speculative_tokens: int,
        common_attn_metadata: Any,
        num_rejected_tokens_gpu: Tensor | None = None,
        **rest: Any,
    ) -> Tensor:
        """Drafts `[rows, num_speculative_tokens]`. The first drafted token follows the one that was just sampled."""
        rows = common_attn_metadata.batch_size()
        if num_speculative_tokens == 0 and self._has_read is self.gate.attention:
            return torch.empty(rows, 0, dtype=torch.int64, device=self.device)  # the host reads on where it is asked
        length = common_attn_metadata.seq_lens[:rows].long()
        if num_rejected_tokens_gpu is not None:
            length = length - num_rejected_tokens_gpu[:rows]
        batch = self.runner.input_batch
        prompts = place_numbers(batch.num_prompt_tokens[:rows].tolist(), length.device)
        self._positions = (length + 1 - prompts).clamp(min=0)
        self._drawn_from = []
        drafted: Tensor = super().propose(
            num_speculative_tokens=num_speculative_tokens,
            common_attn_metadata=common_attn_metadata,
            num_rejected_tokens_gpu=num_rejected_tokens_gpu,
            **rest,
        )
        if self._drawn_from:
            self.logits = {name: one for name, one in self.logits.items() if name in self.runner.requests}
            self.logits |= zip(batch.req_ids, torch.stack(self._drawn_from, 1), strict=True)
        return drafted

    def _sample_draft_tokens(self, hidden_states: Tensor, sampling_metadata: Any) -> tuple[Tensor, None]:
        logits = share(self.model.compute_logits(hidden_states), self.gate.settings.vocab)
        if self.gate.verifier.keeps_drafts:
            self._drawn_from.append(logits)
        tokens = self.gate.slots.draw(self.gate.tracks, self._positions, logits)
        self._positions = self._positions + 1
        return tokens, None

    @torch.inference_mode()
    def read_next(self, attention: Any, scheduled: Sequence[int]) -> Tensor:
        """The host's logits `[rows, vocab]` behind the text that the target has just read, `scheduled` drafts left out."""
        self._has_read, count = attention, attention.num_actual_tokens
        _, by_layer = self.build_per_group_and_layer_attn_metadata(attention)
        with set_forward_context(
            by_layer,
            self.vllm_config,
            num_tokens=count,
            cudagraph_runtime_mode=CUDAGraphMode.NONE,
            slot_mapping=self._get_slot_mapping(count, attention.slot_mapping[:count]),
        ):
            hidden = self.model(
                input_ids=self.runner.input_ids.gpu[:count],
                positions=self.runner.positions[:count],
                inputs_embeds=None,
            )
        behind = place_numbers(scheduled, hidden.device)
        last = attention.query_start_loc[1 : attention.num_reqs + 1].long() - 1 - behind
        return share(self.model.compute_logits(hidden[last]), self.gate.settings.vocab)


class BlockwiseGate:
    """Takes the place of the rejection sampler. `tracks` are the requests of the batch, in its order."""

    def __init__(self, runner: Any) -> None:
        config = runner.vllm_config
        self.runner = runner
        self.settings = EngineSettings.of(config.model_config.hf_config)
        self.slots = Slots(
            self.settings.load_policy(),
            capacity=config.scheduler_config.max_num_seqs,
            device=runner.device,
        )
        self.verifier = Verifier(self.slots, self.settings.vocab)
        self.attention: Any = None  # vLLM's attention metadata of the tokens that the target has just read
        self.tracks: list[Track] = []

    def sample(self, logits: Tensor, metadata: Any) -> SamplerOutput:
        """What is emitted of each row: ids `[rows, k + 1]`, behind them `_NO_TOKEN`."""
        names, device = self.runner.input_batch.req_ids, logits.device
        scheduled = [0] * len(names) if metadata is None else list(metadata.num_draft_tokens)
        self._follow_batch()
        batch = self._describe_batch(scheduled, metadata, device)
        undrafted = None
        if self.verifier.keeps_drafts and batch.needs_host:
            undrafted = self.runner.drafter.read_next(self.attention, scheduled)
        tokens, stands = self.verifier.verify(batch, logits, self._find_logits, undrafted)
        for name in names:
            self.runner.drafter.logits.pop(name, None)
        width = max(scheduled) + 1
        tokens = torch.nn.functional.pad(tokens.int(), (0, width - tokens.shape[1]))
        kept = torch.arange(width, device=device) < stands[:, None]
        return SamplerOutput(sampled_token_ids=torch.where(kept, tokens, _NO_TOKEN), logprobs_tensors=None)

    def _describe_batch(self, scheduled: Sequence[int], metadata: Any, device: torch.device) -> Batch:
        batch, rows = self.runner.input_batch, len(scheduled)
        written = [self.runner.requests[name].num_tokens for name in batch.req_ids]
        prompts = batch.num_prompt_tokens[:rows].tolist()
        counts = place_numbers(scheduled, device)
        read = None if metadata is None else self.runner.input_ids.gpu[metadata.logits_indices]
        drafts = _count_drafted(scheduled, metadata)
        if self.verifier.keeps_drafts:  # near the end of a context vLLM has zeros verified that nobody drafted
            known = self.runner.drafter.logits
            drafts = [count if name in known else 0 for name, count in zip(batch.req_ids, drafts, strict=True)]
        return Batch(
            self.tracks,
            place_numbers([a - b for a, b in zip(written, prompts, strict=True)], device),
            counts.cumsum(0) - counts + torch.arange(rows, device=device),
            torch.zeros(rows, device=device) if read is None else read,
            drafts,
            [not discarded for discarded in self.runner.discard_request_mask.np[:rows]],
        )

    def _find_logits(self, rows: slice, width: int) -> Tensor:
        """The host's, of drafted positions: `[rows, width, vocab]`, zeros where none was drafted."""
        kept = self.runner.drafter.logits
        found = torch.zeros(len(self.tracks[rows]), width, self.settings.vocab, device=self.slots.device)
        for own, name in zip(found, self.runner.input_batch.req_ids[rows], strict=True):
            if name in kept:
                own[: len(kept[name])] = kept[name][:width]
        return found

    def _follow_batch(self) -> None:
        """Tracks of the requests that are in the batch now."""
        names = self.runner.input_batch.req_ids
        known = {track.key: track for track in self.tracks}
        for name in known.keys() - set(names):
            self.slots.leave(known[name])
        self.tracks = [known.get(name) or self._enter(name) for name in names]

    def _enter(self, name: str) -> Track:
        request = self.runner.requests[name]
        settings = RequestSettings.read(request.sampling_params, self.settings.seed)
        return self.slots.enter(name, settings, request.prompt_token_ids or ())

    def rehearse(self, block: int) -> None:
        """Hold what a step of as many rows as may be holds, while vLLM measures its memory."""
        count = block * self.slots.capacity * self.verifier.keeps_drafts
        kept = torch.zeros(count, self.settings.vocab, dtype=self.runner.dtype, device=self.slots.device)
        self.verifier.rehearse(block, kept.dtype)


def _count_drafted(scheduled: Sequence[int], metadata: Any) -> list[int]:
    """How many tokens were drafted of those that are scheduled: vLLM fills up with -1 what was drafted for nobody."""
    if not any(scheduled):
        return list(scheduled)
    ids = iter(metadata.draft_token_ids.tolist())
    counts = []
    for count in scheduled:
        row = [next(ids) for _ in range(count)]
        counts.append(next((place for place, token in enumerate(row) if token < 0), count))
    return counts
